"""The error for bytes that are no events."""


class BadEvents(ValueError):
    """The bytes are damaged, or of an unknown version."""
