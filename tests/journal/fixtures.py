"""The files of tests/fixtures/formats/v6: one of each kind, small enough to be drawn in docs/formats.

`python -m tests.journal.fixtures` writes them again. A format that has been released does not change: what needs to be
different gets a new version, a folder beside this one, and these files stay readable. `v1` was written before messages
could be traced: the same without traces and events. `v2` was written before duplicates were dropped: the same without
ids. `v3` was written before records had room for times, expiry and attempts, and heads for the bytes of bodies. `v4`
was written before segments and marks were bound to their names. `v5` was written before page heads had the expiry of
messages, records a flag of deaths, and the log the offsets of consumers.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.disk import RecordingFiles
from warrenmq.journal.files import Files
from warrenmq.journal.ids_file import encode_head, encode_ids, ids_name
from warrenmq.journal.log_file import log_name
from warrenmq.journal.log_writer import LogWriter
from warrenmq.journal.record import ATTEMPTS, EXPIRY, HAS_DEATHS, PERSISTENT, PUBLISH_TIME, TRACE, TRACED, encode
from warrenmq.journal.segment_file import (
    MARKS_MAGIC,
    SEGMENT_MAGIC,
    encode_batch,
    encode_file_head,
    encode_page,
    marks_name,
    segment_name,
)

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "formats" / "v6"
FOLDER_V1 = FOLDER.parent / "v1"
FOLDER_V2 = FOLDER.parent / "v2"
FOLDER_V3 = FOLDER.parent / "v3"
FOLDER_V4 = FOLDER.parent / "v4"
FOLDER_V5 = FOLDER.parent / "v5"

TIME_MS = 1_700_000_000_000
SALT = 0x7E57_5A17
ADDRESS = b"\x04logs\x04info"  # exchange and routing key
# Payloads of content headers: class 60, weight 0, body size, property flags, properties.
PERSISTENT_HEADER = bytes.fromhex("003c 0000 0000000000000002 1000 02")  # delivery mode 2
TRANSIENT_HEADER = bytes.fromhex("003c 0000 0000000000000003 0000")
DEFINITION = bytes.fromhex(
    "00000039"  # a field table of 57 bytes
    "04 6b696e64 53 00000005 76686f7374"  # "kind": "vhost"
    "03 6b6579 41 00000006 53 00000001 76"  # "key": ["v"]
    "0a 646566696e6974696f6e 46 0000000b"  # "definition": a table of 11 bytes
    "04 6e616d65 53 00000001 76"  # "name": "v"
)
END_OF_DEFINITION = bytes.fromhex("0000001e 04 6b696e64 53 00000005 76686f7374 03 6b6579 41 00000006 53 00000001 76")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


UID = 0x0DB8_0000_0000_0041
TRACE_OF_IT = TRACE.pack(UID, 1000 * TIME_MS + 1, 1000 * TIME_MS + 2)
AGAIN = b"\x02" + u32(8) + u64(4) + b"\x01"
EPOCHS_V1 = [
    # A message to queue 7, and the same one to queue 8.
    b"\x01" + u32(7) + encode(1, PERSISTENT, ADDRESS, PERSISTENT_HEADER, b"hi") + AGAIN,
    # The first is acked; queue 8 is purged.
    b"\x03" + u32(7) + u64(1) + b"\x04" + u32(8) + u64(2) + u64(4),
    # A virtual host comes and goes.
    b"\x05" + u32(len(DEFINITION)) + DEFINITION + b"\x06" + u32(len(END_OF_DEFINITION)) + END_OF_DEFINITION,
]
EPOCHS_V2 = [
    # The message is traced; rows of its events, of which the last has number 3, lie beside it.
    b"\x01"
    + u32(7)
    + encode(1, PERSISTENT | TRACED, ADDRESS, PERSISTENT_HEADER, b"hi", TRACE_OF_IT)
    + AGAIN
    + b"\x07"
    + u64(1)
    + u64(3)
    + u32(4)
    + b"rows",
    *EPOCHS_V1[1:],
    # Rows up to number 3 are in a batch.
    b"\x08" + u64(3),
]
ID = bytes.fromhex("69643120 62652060 00112233 44556677")
LATER_ID = bytes.fromhex("69643220 62652060 00112233 44556677")
EXPIRES = TIME_MS + 60_000
OWNER = 0x8123_4567_89AB_CDEF
EPOCHS_V3 = [
    *EPOCHS_V2,
    # Queue 7 has seen one more id; the log has only one of an exchange; nothing counts of another queue.
    b"\x09"
    + u64(7)
    + b"\x00"
    + u32(1)
    + encode_ids([(ID, EXPIRES)])
    + b"\x09"
    + u64(OWNER)
    + b"\x01"
    + u32(1)
    + encode_ids([(LATER_ID, 0)])
    + b"\x09"
    + u64(9)
    + b"\x02"
    + u32(0),
]
PUBLISHED_AT = 1000 * TIME_MS + 3
EPOCHS_V5 = [
    *EPOCHS_V3,
    # A message that expires in queue 7, and at another time in queue 8; another one came back after two deliveries;
    # queue 9 has used all positions below 5.
    b"\x01"
    + u32(7)
    + encode(2, PERSISTENT | PUBLISH_TIME | EXPIRY, ADDRESS, PERSISTENT_HEADER, b"hi", u64(PUBLISHED_AT) + u64(EXPIRES))
    + b"\x02"
    + u32(8)
    + u64(5)
    + bytes((PERSISTENT | EXPIRY,))
    + u64(EXPIRES + 1)
    + b"\x0a"
    + u32(8)
    + u64(4)
    + u32(2)
    + b"\x0b"
    + u32(9)
    + u64(5),
]
EPOCHS = [
    *EPOCHS_V5,
    # Consumer c of stream 9 has dealt with all before position 3; how far d was is forgotten.
    b"\x0c" + u32(9) + u64(3) + b"\x01c" + b"\x0c" + u32(9) + u64(0) + b"\x01d",
    # A message that the broker has dead-lettered to queue 7.
    b"\x01" + u32(7) + encode(3, PERSISTENT | HAS_DEATHS, ADDRESS, PERSISTENT_HEADER, b"hi"),
]


def make_log() -> bytes:
    """Epochs 41 to 47, the zeros behind them, and nothing else."""
    files = RecordingFiles()
    writer = LogWriter(files, "/log", 41, salt=SALT)
    for number, payload in enumerate(EPOCHS):
        writer.append(payload, 41 + number, TIME_MS + number)
        if number == 0:
            writer.sync()
    return bytes(files.disk.file(f"/log/{log_name(41)}").current)


def make_segment() -> bytes:
    """A page with positions 5000 and 5001, and one with 5003."""
    two = encode(5000, PERSISTENT, ADDRESS, PERSISTENT_HEADER, b"hi")
    two += encode(5001, 0, ADDRESS, TRANSIENT_HEADER, b"you")
    fields = TRACE_OF_IT + u64(EXPIRES) + u32(2)
    one = encode(5003, PERSISTENT | TRACED | EXPIRY | ATTEMPTS, ADDRESS, PERSISTENT_HEADER, b"hi", fields)
    return (
        encode_file_head(SEGMENT_MAGIC, str(FOLDER / segment_name(5000, 0)))
        + encode_page(5000, 5001, 2, TIME_MS, TIME_MS + 1, two, transient=1, body_bytes=2)
        + two
        + encode_page(5003, 5003, 1, TIME_MS + 9, TIME_MS + 9, one, 0, 2, EXPIRES, EXPIRES)
        + one
    )


def make_dead() -> bytes:
    """Position 5001 was deleted, later 5000 and 5003."""
    return (
        encode_file_head(MARKS_MAGIC, str(FOLDER / marks_name(5000, 0)))
        + encode_batch([1], 0)
        + encode_batch([0, 3], 4)
    )


def make_ids() -> bytes:
    """What queue 7 has seen up to epoch 45."""
    rows = encode_ids([(ID, EXPIRES), (LATER_ID, 0)])
    return encode_head(7, 45, rows) + rows


FILES = {
    log_name(41): make_log,
    segment_name(5000, 0): make_segment,
    marks_name(5000, 0): make_dead,
    ids_name(7, 45): make_ids,
}


def path_of(name: str) -> Path:
    """Where the newest of its kind is."""
    return FOLDER / name


def main() -> None:
    files = Files()
    for name, make in FILES.items():
        files.make_dirs(str(path_of(name).parent))
        path_of(name).write_bytes(make())


if __name__ == "__main__":
    main()
