"""What can be wrong with the bytes of events."""


class BadEvents(ValueError):
    """These bytes are no events, or of a version that is not known here."""
