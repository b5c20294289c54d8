"""Files of a data folder are deleted, cut, changed or swapped: the start and `warren check` report every loss.

A folder with files of every kind is made once, for a broker that was stopped and for one that was killed. For each file
and each kind of damage it is copied, checked, and started. What the queues then hold is compared with what they held:
a queue that lost messages must be named, with a count that is no smaller than the loss, and exact where that can be
known; a queue that lost nothing must not be said to have lost anything. No damage may make a message that was not
there, and after the start everything is in order again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from tests.storage.driver import Kept, QuickFiles, body_of
from tests.support.client import PERSISTENT, Client
from warrenmq.cli.check import plain_values
from warrenmq.core.stream import Stream
from warrenmq.storage.check import CheckError, CheckReport, check_folder
from warrenmq.storage.data_dir import DataDirError
from warrenmq.storage.definition_records import CatalogError

QUEUES = ("long", "short", "marked", "once")
STREAMS = ("stream",)
DAMAGES = ("deleted", "empty", "header", "half", "last byte", "flipped first", "flipped middle", "flipped last")
ENDS = ("stopped", "killed")
DEDUPLICATION = {"x-message-deduplication": True, "x-cache-size": 100}


@dataclass(frozen=True)
class Original:
    """A folder, and what its queues hold: the numbers of messages, in order."""

    path: Path
    holds: dict[str, list[int]]
    acked: dict[str, set[int]]


class Life(Kept):
    """A broker whose files are small. Streams are read, queues are emptied."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, QuickFiles(), log_file_size=4096, log_limit=1 << 30, segment_size=4096, page_size=1024)

    def contents(self) -> dict[str, list[int]]:
        vhost = self.broker.vhosts["/"]
        found = {name: self.drain(name) for name in QUEUES if name in vhost.queues}
        for name in STREAMS:
            if name in vhost.queues:
                found[name] = self._read(vhost.queues[name])
        return found

    def _read(self, stream: Stream) -> list[int]:
        channel = Client(self.broker).channel()
        channel.consume(stream, prefetch=1000, arguments={"x-stream-offset": "first"})
        numbers: list[int] = []
        for _ in range(40):
            self.settle()
            numbers += [int(delivery.body[:8]) for delivery in channel.deliveries()]
        channel.close()
        return numbers


def make_original(folder: Path, end: str) -> Original:
    """Paged out messages, some acked; messages that only the log has; a stream; ids; marks; log files and a trim."""
    life = Life(folder)
    for name in QUEUES:
        life.declare(name, **(DEDUPLICATION if name == "once" else {}))
    life.declare("stream", **{"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 4096})
    life.publish(range(300), "long")
    life.publish(range(100), "marked")
    life.settle()
    for number in range(120):
        life.channel.publish(body_of(number), "stream", delivery_mode=PERSISTENT)
        if number % 10 == 9:
            life.settle()
    for number in range(20):
        headers = {"x-deduplication-header": f"id-{number}"}
        life.channel.publish(body_of(number), "once", delivery_mode=PERSISTENT, headers=headers)
    life.settle()
    acked = {"marked": set(range(0, 60, 2)), "once": set(range(20))}
    taken = life.take(60, "marked")
    life.ack(taken[::2])
    life.drain("once")
    life.checkpoint()
    life.publish(range(300, 330), "long")
    life.publish(range(100, 110), "marked")
    life.publish(range(40), "short")
    life.settle()
    for _ in range(3):  # more files of the log
        life.publish(range(330, 332), "long")
        life.settle()
    holds = {
        "long": [*range(330), *[330, 331] * 3],
        "short": list(range(40)),
        "marked": [number for number in range(110) if number not in acked["marked"]],
        "once": [],
        "stream": list(range(120)),
    }
    if end == "stopped":
        life.stop()
    else:
        life.crash()
    return Original(folder, holds, acked)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Original]:
    return {end: make_original(tmp_path_factory.mktemp(end) / "data", end) for end in ENDS}


def files_of(original: Original) -> list[str]:
    return sorted(str(path.relative_to(original.path)) for path in original.path.rglob("*") if path.is_file())


def harm(path: Path, damage: str) -> bool:
    """Damage the file. Return False if it is the same as before."""
    before = path.read_bytes()
    content = bytearray(before)
    if damage == "deleted":
        path.unlink()
        return True
    size = len(content)
    if damage.startswith("flipped"):
        end = len(content.rstrip(b"\0"))  # a file of the log is longer than what is in it
        at = {"flipped first": 0, "flipped middle": end // 2, "flipped last": end - 1}[damage]
        if 0 <= at < size:
            content[at] ^= 0x20
    else:
        del content[{"empty": 0, "header": min(32, size), "half": size // 2, "last byte": max(0, size - 1)}[damage] :]
    path.write_bytes(content)
    return bytes(content) != before


@contextmanager
def damaged(original: Original, file: str, damage: str, folder: Path) -> Iterator[Path | None]:
    shutil.copytree(original.path, folder)
    try:
        yield folder if harm(folder / file, damage) else None
    finally:
        shutil.rmtree(folder)


def check(folder: Path) -> CheckReport | str:
    try:
        report = check_folder(str(folder))
    except CheckError as error:
        return str(error)
    json.dumps(plain_values(report))
    return report


def counts_in(lines: list[str], queue: str) -> list[tuple[int, bool]]:
    """How many messages of a queue the start says are lost, and whether that is exact."""
    pattern = re.compile(rf"(up to )?([\d,]+) messages? of queue '{queue}' in vhost '/'(?! has seen|, acknowledged)")
    return [(int(found[2].replace(",", "")), found[1] is None) for line in lines if (found := pattern.search(line))]


def is_unknown(lines: list[str]) -> bool:
    """Return True if the start reports that the number of lost messages is unknown."""
    return any(
        "is unknown" in line or "If there was no crash" in line or "belongs to no queue" in line for line in lines
    )


def require_honesty(original: Original, file: str, damage: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = f"{file} {damage}"
    told = check(folder)
    try:
        life = Life(folder)
    except (DataDirError, CatalogError):
        is_told = not isinstance(told, CheckReport) or bool(told.damage)
        assert is_told, f"{where}: refused to start, but check found nothing"
        return
    lines = list(life.storage.report)
    caplog.clear()
    found = life.contents()
    lines += [record.getMessage() for record in caplog.records]
    life.stop()
    assert isinstance(told, CheckReport), f"{where}: {told}"
    findings = told.findings
    for name, before in original.holds.items():
        after = found.get(name, [])
        lost = sum((Counter(before) - Counter(after)).values())
        extra = Counter(after) - Counter(before)
        assert set(extra) <= original.acked.get(name, set()), f"{where}: {name} has what it never had: {extra}"
        if name in found and not extra:
            ordered = [number for number in before if number in set(after)]
            assert Counter(after) <= Counter(ordered), f"{where}: {name}: {after}"
        at_start = counts_in(lines, name)
        at_check = [finding.lost_messages for finding in findings if finding.queue == name and finding.lost_messages]
        context = f"{where}: {name} lost {lost}\nstart: {lines}\ncheck: {findings}"
        if lost and not is_unknown(lines):
            assert sum(count for count, _ in at_start) >= lost, context
            assert sum(at_check) >= lost, context
        if at_start and all(is_exact for _, is_exact in at_start):
            assert sum(count for count, _ in at_start) == lost, context
        if not lost:
            assert not any(is_exact for _, is_exact in at_start), context
            assert at_check == [] or not file.startswith("queues"), context
        if lost:
            is_torn = any("in the middle of an epoch" in finding.text for finding in told.remarks)
            assert told.damage or is_torn, context
        if extra:
            assert any("delivered again" in line for line in lines), context
            assert any("delivered again" in finding.lost + finding.text for finding in findings), context
    if file.startswith("seen"):
        assert any("ids seen by queue 'once' in vhost '/' are lost" in line for line in lines), where
        assert any(finding.kind == "ids" and finding.queue == "once" for finding in told.damage), where
    if lines == []:
        assert [finding for finding in told.damage if finding.lost] == [], f"{where}: {told.damage}"
    again = Life(folder)
    assert again.storage.report == [], f"{where}: the second start reports {again.storage.report}"
    again.stop()
    # A page of a stream stays where it is: streams have no deletion marks.
    left = [finding for finding in check_folder(str(folder)).damage if finding.queue not in STREAMS]
    assert left == [], f"{where}: after a start"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ENDS)
def test_every_loss_is_reported_and_nothing_else_is(
    end: str, damage: str, originals: dict[str, Original], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original = originals[end]
    for number, file in enumerate(files_of(original)):
        with damaged(original, file, damage, tmp_path / str(number)) as folder:
            if folder is not None:
                require_honesty(original, file, damage, folder, caplog)


@pytest.mark.parametrize("end", ENDS)
def test_files_that_were_swapped_are_reported_and_none_is_read_as_another(
    end: str, originals: dict[str, Original], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each file with the next one of its kind, and with the first of each other queue."""
    original = originals[end]
    files = files_of(original)
    kinds = {Path(file).suffix for file in files}
    pairs = {pair for kind in kinds for pair in pairwise(file for file in files if Path(file).suffix == kind)}
    begins = [file for file in files if file.endswith("00000000-0.seg")]
    pairs |= set(combinations(begins, 2))
    for number, (one, other) in enumerate(sorted(pairs)):
        folder = tmp_path / str(number)
        shutil.copytree(original.path, folder)
        content = (folder / one).read_bytes()
        (folder / one).write_bytes((folder / other).read_bytes())
        (folder / other).write_bytes(content)
        require_honesty(original, one, f"swapped with {other}", folder, caplog)
        shutil.rmtree(folder)


@pytest.mark.parametrize("end", ENDS)
def test_an_untouched_folder_is_reported_as_whole(end: str, originals: dict[str, Original], tmp_path: Path) -> None:
    shutil.copytree(originals[end].path, tmp_path / "data")
    report = check_folder(str(tmp_path / "data"))
    assert report.damage == []
    assert report.has_manifest
    life = Life(tmp_path / "data")
    assert life.storage.report == []
    assert life.contents() == originals[end].holds
    life.stop()


def test_the_originals_have_files_of_every_kind(originals: dict[str, Original]) -> None:
    for end, original in originals.items():
        suffixes = Counter(Path(file).suffix for file in files_of(original))
        assert suffixes[".seg"] >= 6, end
        assert suffixes.keys() >= {".log", ".seg", ".dead", ".ids", ".sqlite", ""}
    assert Counter(Path(file).suffix for file in files_of(originals["killed"]))[".log"] >= 3
