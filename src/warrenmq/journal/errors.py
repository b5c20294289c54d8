"""Errors about files, with texts for the operator.

An `OSError` is passed through as it is. The one exception is a failed sync (`SyncFailed`), which must never be retried.
"""


class JournalError(Exception):
    """A file does not hold what it should; the text names the place."""


class UnknownVersion(JournalError):
    """A file in the format of a newer WarrenMQ: it is left untouched."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(f"{path} has format version {version}, which this version of WarrenMQ cannot read")
        self.path = path
        self.version = version


class BadRecord(JournalError):
    """These bytes are not a message record."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"no message record at offset {offset}: {why}")
        self.offset = offset
        self.why = why


class DamagedPage(JournalError):
    """A page of a segment is unusable. It held positions `first` to `last`; None if its head is lost."""

    def __init__(self, path: str, offset: int, why: str, first: int | None = None, last: int | None = None) -> None:
        held = f" (positions {first} to {last})" if first is not None else ""
        super().__init__(f"{path or 'a segment'}: the page at offset {offset}{held} is damaged: {why}")
        self.path = path
        self.offset = offset
        self.why = why
        self.first = first
        self.last = last


class SyncFailed(JournalError):
    """The log could not be made durable; what was written since the last sync may be lost.

    A second sync would prove nothing, because the kernel may have dropped the dirty pages: the only way out is to stop.
    """

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(f"{path} could not be synced: {cause.strerror or cause}")
        self.path = path
        self.cause = cause
