"""The commit log: epochs with sequence numbers, one behind the other, in files that roll by size and are used again.

docs/formats/log.md draws the files. `LogWriter` appends and syncs; `read_log` gives back every whole epoch in order and
says what was torn by a crash and what is damaged. Each step of the writer may be the last before a crash:

- Epochs that wait for the same sync may reach the disk in any order. Each says up to where all was synced when it was
  written, so that a hole among them is known for what it is: they never were durable, and all behind the hole is cut.
- A new file gets its name, and the folder is synced, before the first epoch is written to it; the file before it is
  synced before that. So where a file named N exists, all epochs below N were durable: a missing one is damage.
- Old files are removed or set aside oldest first, the folder synced after each: what is left has no gap.
- A file that is used again still holds older epochs. They never count: their sequences are lower. Nor does anything
  that a client put into a message body so that it looks like an epoch: it cannot know the salt.
- Behind an epoch its writer puts zeros, over which the next one is written: zeros are a clean end, and what lies behind
  them (older epochs, cut anywhere) does not matter.

The writer belongs to one thread at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from warrenmq.journal.errors import JournalError, SyncFailed, UnknownVersion
from warrenmq.journal.files import NO_DESCRIPTOR, Data, Files

# docs/formats/log.md says what each version added.
VERSION = 5
READABLE = (1, 2, 3, 4, 5)
FILE_MAGIC = b"WARRENLG"
EPOCH_MAGIC = 0x57455031
FILE_SIZE = 32 * 2**20
MAX_PAYLOAD = 2**32 - 1

_FILE_HEAD = Struct("<8sIIQII")  # magic, version, salt, first sequence, 0, checksum of the 28 before
FILE_HEAD_SIZE = _FILE_HEAD.size
_EPOCH_HEAD = Struct("<IIQQQII")  # magic, payload length, sequence, synced sequence, time in ms, salt, checksum
EPOCH_HEAD_SIZE = _EPOCH_HEAD.size
_SALT_OFFSET = 32  # within an epoch's head; the checksum covers the head from byte 4 to 36, and the payload
_END = bytes(EPOCH_HEAD_SIZE)
_U32 = Struct("<I")
_NAME = re.compile(r"(\d{20})\.log")

_MAX_JOINED = 64 * 1024  # a bigger payload is not copied to stand behind its head
_ZEROS = bytes(2**20)
_MAX_SPARES = 2


class LogFile(NamedTuple):
    """A file of the log. `last` is `first` - 1 while it holds no epoch; `size` counts to the end of the last one."""

    first: int
    last: int
    path: str
    size: int


class Epoch(NamedTuple):
    sequence: int
    time_ms: int
    payload: memoryview
    file: str  # its name


class TornTail(NamedTuple):
    """What a crash left of an epoch that was being written. Nothing durable was in it."""

    file: str
    offset: int
    size: int
    reason: str


class Damage(NamedTuple):
    """What was once durable and cannot be read. `lost` are the first and last sequence that are missing, if any is."""

    file: str
    offset: int
    reason: str
    lost: tuple[int, int] | None


def log_name(first: int) -> str:
    """The name of the log file that begins with this epoch."""
    return f"{first:020}.log"


def parse_log_name(name: str) -> int | None:
    """The first epoch of a log file; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_file_head(first: int, salt: int) -> bytes:
    checked = _FILE_HEAD.pack(FILE_MAGIC, VERSION, salt, first, 0, 0)[:-4]
    return checked + _U32.pack(crc32c(checked))


def encode_epoch_head(payload: Data, sequence: int, synced: int, time_ms: int, salt: int) -> bytes:
    """`synced` is the last epoch that was durable when this one was written."""
    head = _EPOCH_HEAD.pack(EPOCH_MAGIC, len(payload), sequence, synced, time_ms, salt, 0)[:-4]
    return head + _U32.pack(crc32c(payload, crc32c(head[4:])))


def random_salt() -> int:
    """A number that no client can know; not 0, which is everywhere."""
    return int.from_bytes(os.urandom(4), "little") or 1


class LogWriter:
    """Appends epochs.

    `append` raises an `OSError` where the disk refuses (after `cut` it can be tried again). Where a sync fails, in
    whichever call, that is a `SyncFailed`, also from every later `append` and `sync`: nothing can be promised any more.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        next_sequence: int,
        file_size: int = FILE_SIZE,
        older: Sequence[LogFile] = (),
        salt: int | None = None,
    ) -> None:
        """Writing begins in a new file, with the first append. `older` are the files that a scan found, and that
        `cut_torn_tail` has made durable."""
        self.files = files
        self.folder = folder
        self.next_sequence = next_sequence
        self.file_size = file_size
        self._salt = random_salt() if salt is None else salt
        self._older = list(older)
        self._current: LogFile | None = None
        self._handle = -1
        self._synced = next_sequence - 1
        self._failure: SyncFailed | None = None
        self._has_unsynced_folder = False  # a file was let go of, and the folder is not synced since
        self.on_roll: Callable[[], None] | None = None  # called half way: a test may end the process there
        self._spare_handle = -1  # of one that is being made
        self._spare_size = 0
        files.make_dirs(folder)
        # Also if it was there: whoever made it may have been killed before the sync.
        files.sync_dir(os.path.dirname(folder) or ".")
        self._spares = self._find_spares()

    @property
    def files_in_use(self) -> list[LogFile]:
        """All files of the log, oldest first."""
        return [*self._older, self._current] if self._current else list(self._older)

    @property
    def written(self) -> int:
        """The last epoch that was appended."""
        return self.next_sequence - 1

    @property
    def synced(self) -> int:
        """The last epoch that is durable."""
        return self._synced

    @property
    def current_size(self) -> int:
        """Bytes in the file that is being written; 0 before the first epoch."""
        return self._current.size if self._current is not None else 0

    def append(self, payload: Data, sequence: int, time_ms: int, durably: bool = False) -> None:
        """Write an epoch behind the last one. It is not durable before `sync`, unless it is asked for: then all is."""
        self._check_append(payload, sequence)
        current = self._current
        if current is None or not self._has_room(current, len(payload)):
            current = self._roll()
        head = self._head(current, payload, sequence, time_ms)
        is_alone = self._synced == sequence - 1  # all before it is durable
        if durably and is_alone:
            self.files.write_durably(self._handle, (head, payload, _END), current.size)
        elif len(payload) <= _MAX_JOINED:
            self.files.write(self._handle, b"".join((head, payload, _END)), current.size)
        else:
            self.files.writev(self._handle, (head, payload, _END), current.size)
        self._note_append(current, sequence, len(head) + len(payload))
        if durably:
            if is_alone:
                self._synced = sequence
            else:
                self.sync()

    def begin_append(self, payload: Data, sequence: int, time_ms: int) -> tuple[int, bytes, int] | None:
        """Return what the caller has to write durably (handle, bytes, offset) before `end_append`.

        Nothing changes until then. None if `append` has more to do than that.
        """
        self._check_append(payload, sequence)
        current = self._current
        if current is None or self._synced != sequence - 1 or not self._has_room(current, len(payload)):
            return None
        return self._handle, b"".join((self._head(current, payload, sequence, time_ms), payload, _END)), current.size

    def end_append(self, sequence: int, record: bytes) -> None:
        """The epoch of `begin_append` is durable."""
        assert self._current is not None
        self._note_append(self._current, sequence, len(record) - len(_END))
        self._synced = sequence

    def _check_append(self, payload: Data, sequence: int) -> None:
        if sequence != self.next_sequence:
            raise ValueError(f"epoch {sequence} cannot follow epoch {self.next_sequence - 1}")
        if len(payload) > MAX_PAYLOAD:
            raise JournalError(f"an epoch of {len(payload)} bytes is too long for the log")
        self._raise_if_failed()

    def _head(self, current: LogFile, payload: Data, sequence: int, time_ms: int) -> bytes:
        head = encode_epoch_head(payload, sequence, self._synced, time_ms, self._salt)
        if current.last < current.first:
            # The file's head comes with its first epoch: a file that is used again has the old head until then.
            return encode_file_head(current.first, self._salt) + head
        return head

    def _note_append(self, current: LogFile, sequence: int, size: int) -> None:
        self._current = current._replace(last=sequence, size=current.size + size)
        self.next_sequence = sequence + 1

    def sync(self) -> None:
        """Return when every epoch that was appended is durable."""
        self._raise_if_failed()
        if self._current is not None and self._synced < self._current.last:
            self._sync_or_fail(lambda: self.files.sync(self._handle), self._current.path)
            self._synced = self._current.last

    def cut(self) -> None:
        """After a failed append: take away what it wrote. The file ends behind its last whole epoch."""
        if self._current is not None:
            self.files.truncate(self._handle, self._current.size)

    def remove_up_to(self, sequence: int) -> None:
        """Let go of the files that hold nothing later; never of the newest: it keeps the numbers."""
        newest = 0 if self._current is not None else 1
        if self._has_unsynced_folder:
            self._sync_folder()  # the last call had no descriptor for it
        while len(self._older) > newest and self._older[0].last <= sequence:
            path = self._older[0].path
            if len(self._spares) < _MAX_SPARES and self._is_reusable(path):
                spare = self._new_spare_path()
                self.files.rename(path, spare)
                self._spares.append(spare)
            else:
                self.files.remove(path)
            del self._older[0]
            self._has_unsynced_folder = True
            # One at a time: the disk may keep later changes of a folder without earlier ones, and that would be a gap.
            self._sync_folder()

    def begin_file(self) -> None:
        """Let the next epoch begin a new file; also without one that file stays, for its name keeps the numbers."""
        if self.files_in_use and (self._current is None or self._current.last >= self._current.first):
            self._roll()

    @property
    def has_spare(self) -> bool:
        """Whether the next roll finds a file whose blocks are there."""
        return bool(self._spares)

    def prepare_spare(self) -> None:
        """See to it that the next roll finds a file whose blocks are there: overwriting them is faster to sync."""
        while self.prepare_spare_step():
            pass

    def prepare_spare_step(self) -> bool:
        """The same in steps of a MiB, each synced, for a thread that is wanted elsewhere; True while more is to do."""
        if self._spare_handle < 0:
            if self._spares:
                return False
            self._spare_handle = self.files.create(self._partial_spare_path)
            self._spare_size = 0
        try:
            piece = min(len(_ZEROS), self.file_size - self._spare_size)
            self.files.write(self._spare_handle, memoryview(_ZEROS)[:piece], self._spare_size)
            self.files.sync(self._spare_handle)
        except OSError:
            self._discard_partial_spare()
            raise
        self._spare_size += piece
        if self._spare_size < self.file_size:
            return True
        self._close_partial_spare()
        spare = self._new_spare_path()
        self.files.rename(self._partial_spare_path, spare)
        self._spares.append(spare)
        return False

    def close(self) -> None:
        """Let go of the files. Syncs nothing."""
        if self._handle >= 0:
            self.files.close(self._handle)
            self._handle = -1
        if self._spare_handle >= 0:
            self._discard_partial_spare()

    def _has_room(self, current: LogFile, length: int) -> bool:
        return current.size + EPOCH_HEAD_SIZE + length + len(_END) <= self.file_size

    def _roll(self) -> LogFile:
        """Begin a new file. Where it fails half way it can be called again."""
        self.sync()
        path = os.path.join(self.folder, log_name(self.next_sequence))
        if self._spares:
            self.files.rename(self._spares[-1], path)
            self._spares.pop()
            handle = self.files.open(path)
        else:
            handle = self.files.create(path)
        if self.on_roll is not None:
            self.on_roll()
        try:
            self._sync_folder()
        except (SyncFailed, OSError):
            self.files.close(handle)
            raise
        if self._current is not None:
            self.files.close(self._handle)
            self._older.append(self._current)
        # A file of that name may be left of a start that wrote no epoch.
        self._older = [file for file in self._older if file.path != path]
        self._handle = handle
        self._current = LogFile(self.next_sequence, self.next_sequence - 1, path, 0)
        return self._current

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _sync_folder(self) -> None:
        self._sync_or_fail(lambda: self.files.sync_dir(self.folder), self.folder)
        self._has_unsynced_folder = False

    def _sync_or_fail(self, sync: Callable[[], None], path: str) -> None:
        """An `OSError` means that no descriptor was free: no sync was tried, and it may be called again."""
        try:
            sync()
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                self._failure = SyncFailed(path, error)
                raise self._failure from error
            raise

    @property
    def _partial_spare_path(self) -> str:
        return os.path.join(self.folder, "spare-new")

    def _new_spare_path(self) -> str:
        number = 1
        while (path := os.path.join(self.folder, f"spare-{number}")) in self._spares:
            number += 1
        return path

    def _find_spares(self) -> list[str]:
        """The spares that the last run left; those of no use are removed."""
        spares: list[str] = []
        for name in self.files.list(self.folder):
            if name.startswith("spare-"):
                path = os.path.join(self.folder, name)
                if name != "spare-new" and len(spares) < _MAX_SPARES and self._is_reusable(path):
                    spares.append(path)
                else:
                    self.files.remove(path)
        return spares

    def _is_reusable(self, path: str) -> bool:
        """Whether most of a file's blocks are there, and not more than that (an epoch may be bigger than a file)."""
        handle = self.files.open_read(path)
        try:
            return self.file_size * 3 // 4 <= self.files.size(handle) <= self.file_size
        finally:
            self.files.close(handle)

    def _close_partial_spare(self) -> None:
        self.files.close(self._spare_handle)
        self._spare_handle = -1

    def _discard_partial_spare(self) -> None:
        self._close_partial_spare()
        self.files.remove(self._partial_spare_path)


class LogScan:
    """One pass over the log. Iterate it to the end, then ask what it found.

    The epochs come in the order of their sequences, each once; an epoch that is not whole never comes. One file is held
    in memory at a time.
    """

    def __init__(self, files: Files, folder: str, progress: Callable[[int, int], None] | None = None) -> None:
        self.folder = folder
        self.files_found: list[LogFile] = []  # to be handed to the writer as `older`
        self.last_sequence = 0  # also where the epochs at the end are lost: the next one has the next number
        self.torn_tail: TornTail | None = None
        self.damage: list[Damage] = []
        self._files = files
        self._progress = progress
        self._salts: set[int] = set()  # that trustworthy heads have named
        self._expected = 0  # the sequence that comes next

    def __iter__(self) -> Iterator[Epoch]:
        firsts = [first for name in self._files.list(self.folder) if (first := parse_log_name(name)) is not None]
        total = self._read_heads(firsts)
        done = 0
        for number, first in enumerate(firsts):
            name = log_name(first)
            data = self._read(name)
            done += len(data)
            if number and first < self._expected:
                reason = f"it begins with epoch {first}, but {self._expected} was to come: it was left out"
                self.damage.append(Damage(name, 0, reason, None))
            else:
                self._enter_file(name, first, number == 0)
                next_first = firsts[number + 1] if number + 1 < len(firsts) else 0
                size = yield from self._read_epochs(name, first, data, next_first)
                path = os.path.join(self.folder, name)
                self.files_found.append(LogFile(first, self._expected - 1, path, size))
            if self._progress is not None:
                self._progress(done, total)
            data = b""  # before the next one is read
        self.last_sequence = max(0, self._expected - 1)

    def _read_heads(self, firsts: list[int]) -> int:
        """Gather the salts that the files name, and how much there is to read."""
        total = 0
        for first in firsts:
            path = os.path.join(self.folder, log_name(first))
            handle = self._files.open_read(path)
            try:
                total += self._files.size(handle)
                head = _parse_file_head(self._files.read(handle, FILE_HEAD_SIZE, 0), path)
            finally:
                self._files.close(handle)
            if head is not None:
                self._salts.add(head[1])
        return total

    def _read(self, name: str) -> bytes:
        handle = self._files.open_read(os.path.join(self.folder, name))
        try:
            return self._files.read(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)

    def _enter_file(self, name: str, first: int, is_oldest: bool) -> None:
        """Come to the next file: were all epochs before it there?"""
        # A tail that was torn before this file was begun is no news: whoever began it had found the same end.
        torn, self.torn_tail = self.torn_tail, None
        if not is_oldest and first > self._expected:
            lost = (self._expected, first - 1)
            if torn is not None:
                self.damage.append(Damage(torn.file, torn.offset, torn.reason, lost))
            else:
                self.damage.append(Damage(name, 0, "epochs are missing before this file", lost))
        self._expected = first

    def _read_epochs(self, name: str, first: int, data: bytes, next_first: int) -> Generator[Epoch, None, int]:
        """The epochs of one file; returns where the last one ends. `next_first` is the first epoch of the next file."""
        salts, problem = self._check_head(name, first, data)
        if salts is None:
            return 0
        size = 0
        offset = FILE_HEAD_SIZE if problem is None else 0
        view = memoryview(data)
        while True:
            if problem is None:
                found = _epoch_at(data, offset)
                if not isinstance(found, str) and found.sequence == self._expected and found.salt in salts:
                    yield Epoch(found.sequence, found.time_ms, view[found.start : found.end], name)
                    self._expected += 1
                    offset = size = found.end
                    continue
                problem = self._end_reason(data, offset, found)
            later = _find_epochs(data, offset, salts, self._expected)
            if later and problem is None:
                problem = "an epoch is missing"
            was_synced = next_first > self._expected or any(each.synced >= self._expected for each in later)
            if not later or not was_synced:
                if problem is not None:
                    self.torn_tail = TornTail(name, offset, len(data.rstrip(b"\0")) - offset, problem)
                return size
            lost = (self._expected, later[0].sequence - 1) if later[0].sequence > self._expected else None
            self.damage.append(Damage(name, offset, str(problem), lost))
            self._expected = later[0].sequence
            offset = later[0].start - EPOCH_HEAD_SIZE
            problem = None

    def _check_head(self, name: str, first: int, data: bytes) -> tuple[set[int] | None, str | None]:
        """The salts that count in a file (None: it has no epochs), and what is wrong with its head."""
        head = _parse_file_head(data, os.path.join(self.folder, name))
        if head is not None:
            if head[0] == first:
                return {head[1]}, None
            if head[0] > first:
                self.damage.append(Damage(name, 0, f"its head says that it begins with epoch {head[0]}", None))
            return None, None  # used again, and not written yet: all in it is older
        if data.count(0) == len(data):
            return None, None  # not written yet
        begin = _epoch_at(data, FILE_HEAD_SIZE)
        if not isinstance(begin, str) and begin.sequence == first:
            self.damage.append(Damage(name, 0, "its file head is damaged", None))
            return {begin.salt}, None
        # The salts of other files: a writer keeps its salt as long as it lives.
        return self._salts, "its file head is damaged"

    def _end_reason(self, data: bytes, offset: int, found: _EpochSpan | str) -> str | None:
        """Why no epoch was read at `offset`; None for a clean end: zeros, the end of the file, or an older epoch."""
        if not any(data[offset : offset + EPOCH_HEAD_SIZE]):
            return None
        if isinstance(found, str):
            return found
        if found.sequence < self._expected:
            return None
        return f"epoch {found.sequence} was found where {self._expected} was to come"


def read_log(files: Files, folder: str, progress: Callable[[int, int], None] | None = None) -> LogScan:
    """A scan of the log in this folder, to be iterated. `progress` hears how many bytes of how many were read."""
    return LogScan(files, folder, progress)


def cut_torn_tail(files: Files, scan: LogScan) -> None:
    """Make the end of the log certain, after a scan and before a writer begins.

    What is torn is cut off. And the last file is synced even if nothing is: a broker that was killed between write and
    sync leaves epochs which can be read now, and which a power loss would take away after they were believed.
    """
    if scan.files_found:
        handle = files.open(scan.files_found[-1].path)
        try:
            if scan.torn_tail is not None:
                files.truncate(handle, scan.torn_tail.offset)
            files.sync(handle)
        finally:
            files.close(handle)
        files.sync_dir(scan.folder)


class _EpochSpan(NamedTuple):
    """A whole epoch within a file: `start` and `end` of its payload."""

    sequence: int
    synced: int
    time_ms: int
    salt: int
    start: int
    end: int


def _parse_file_head(data: bytes, path: str) -> tuple[int, int] | None:
    """First sequence and salt; None if the head is not whole. A file of a newer version is refused."""
    if len(data) < FILE_HEAD_SIZE:
        return None
    magic, version, salt, first, _, checksum = _FILE_HEAD.unpack_from(data)
    if magic != FILE_MAGIC or crc32c(data[: FILE_HEAD_SIZE - 4]) != checksum:
        return None
    if version not in READABLE:
        raise UnknownVersion(path, version)
    return first, salt


def _epoch_at(data: bytes, offset: int) -> _EpochSpan | str:
    """The whole epoch that begins at `offset`, or why there is none."""
    start = offset + EPOCH_HEAD_SIZE
    if start > len(data):
        return "it ends within the head of an epoch"
    magic, length, sequence, synced, time_ms, salt, checksum = _EPOCH_HEAD.unpack_from(data, offset)
    if magic != EPOCH_MAGIC:
        return "no epoch begins here"
    end = start + length
    if end > len(data):
        return "it ends within an epoch"
    checked = crc32c(data[offset + 4 : offset + EPOCH_HEAD_SIZE - 4])
    if crc32c(memoryview(data)[start:end], checked) != checksum:
        return "the checksum of an epoch does not match"
    return _EpochSpan(sequence, synced, time_ms, salt, start, end)


def _find_epochs(data: bytes, offset: int, salts: set[int], at_least: int) -> list[_EpochSpan]:
    """All whole epochs from `offset` on that have one of the salts and are not older.

    They are found by their salt, which is rare; the magic could be repeated in a message body for millions of times.
    """
    places: list[_EpochSpan] = []
    for salt in salts:
        pattern = _U32.pack(salt)
        hit = offset + _SALT_OFFSET - 1
        while (hit := data.find(pattern, hit + 1)) >= 0:
            found = _epoch_at(data, hit - _SALT_OFFSET)
            if not isinstance(found, str) and found.sequence >= at_least:
                places.append(found)
                hit = found.end
    return sorted(places, key=lambda place: place.start)
