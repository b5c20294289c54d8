"""What can be wrong with a file, in words for whoever runs the broker.

An `OSError` is not among them: where the operating system refuses, its own error comes as it is. The one exception is a
failed sync of the log (`SyncFailed`), which must never be tried again.
"""


class JournalError(Exception):
    """A file does not hold what it should. The text names the place."""


class UnknownVersion(JournalError):
    """A file of a newer WarrenMQ: whole, but not for this program. It must not be touched."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(f"{path} has format version {version}, which this version of WarrenMQ cannot read")
        self.path = path
        self.version = version


class BadRecord(JournalError):
    """Bytes that are no message record."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"no message record at offset {offset}: {why}")
        self.offset = offset
        self.why = why


class DamagedPage(JournalError):
    """A page of a segment cannot be used. Positions `first` to `last` were in it, None where its head is lost."""

    def __init__(self, path: str, offset: int, why: str, first: int | None = None, last: int | None = None) -> None:
        held = f" (positions {first} to {last})" if first is not None else ""
        super().__init__(f"{path or 'a segment'}: the page at offset {offset}{held} is damaged: {why}")
        self.path = path
        self.offset = offset
        self.why = why
        self.first = first
        self.last = last


class SyncFailed(JournalError):
    """The log could not be made durable. What was written since the last sync may be lost, and a second sync would not
    tell: the kernel has dropped the dirty pages (or has not, nobody knows). There is no way on but to stop."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(f"{path} could not be synced: {cause.strerror or cause}")
        self.path = path
        self.cause = cause
