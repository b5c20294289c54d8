"""Logs in memory, and what a scan of them may say."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.disk import RecordingFiles
from warrenmq.journal.log_scan import LogScan, read_log
from warrenmq.journal.log_writer import LogWriter

FOLDER = "/log"
SALT = 0x5A17_5A17


@dataclass
class History:
    """A log that is being written, and every epoch that was: sequence -> (time in ms, payload)."""

    files: RecordingFiles = field(default_factory=RecordingFiles)
    written: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    def writer(self, next_sequence: int = 1, file_size: int = 512, salt: int | None = SALT) -> LogWriter:
        return LogWriter(self.files, FOLDER, next_sequence, file_size, salt=salt)

    def append(self, writer: LogWriter, payload: bytes) -> None:
        sequence = writer.next_sequence
        writer.append(payload, sequence, 1000 + sequence)
        self.written[sequence] = 1000 + sequence, payload

    def file(self, name: str) -> bytearray:
        """The bytes of a file, to be changed."""
        return self.files.disk.file(f"{FOLDER}/{name}").current

    def names(self) -> list[str]:
        return self.files.list(FOLDER)

    def scan(self) -> tuple[LogScan, dict[int, tuple[int, bytes]]]:
        """What is read now, checked: nothing that was not written so, each once, in order."""
        scan = read_log(self.files, FOLDER)
        found = {}
        last = 0
        for sequence, time_ms, payload, _ in scan:
            assert sequence > last, "out of order"
            last = sequence
            found[sequence] = time_ms, bytes(payload)
            assert self.written.get(sequence) == found[sequence], "never written"
        return scan, found

    def check(self) -> LogScan:
        """The same; and whatever is missing is said to be, as a torn tail or as damage."""
        scan, found = self.scan()
        told = {sequence for each in scan.damage if each.lost for sequence in range(each.lost[0], each.lost[1] + 1)}
        assert not told & set(found), "said to be lost, and read"
        missing = set(self.written) - set(found) - told
        if scan.torn_tail is not None:
            missing -= set(range(scan.last_sequence + 1, max(self.written) + 1))
        assert missing == set(), "lost without a word"
        return scan


def a_log(payloads: list[bytes], file_size: int = 512) -> History:
    """A log with one epoch for each payload, all synced."""
    history = History()
    writer = history.writer(file_size=file_size)
    for payload in payloads:
        history.append(writer, payload)
        writer.sync()
    writer.close()
    return history
