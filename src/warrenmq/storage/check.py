"""Looks at a data folder while no broker uses it, and says what is in it and what is not as it was written.

Everything is read and nothing changed: every checksum of every file, the catalog, and how the three fit together. It
counts what the next start will find: messages in segments that are not marked dead, and those that only the log has.
It shares the formats (`journal`) with recovery, but not its decisions, so each can be held against the other.

What a crash leaves behind is no damage: a torn tail, a file that was being made, the folder of a deleted queue. The
next start deals with that and nothing durable is lost; it is told as a remark.

Owned by whoever calls, in one thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

from warrenmq.core.arguments import queue_type_of
from warrenmq.journal import segment_file
from warrenmq.journal.errors import DamagedPage, JournalError, UnknownVersion
from warrenmq.journal.files import Files
from warrenmq.journal.ids_file import parse_ids_name, read_ids
from warrenmq.journal.log_file import parse_log_name, read_log
from warrenmq.journal.record import PERSISTENT
from warrenmq.journal.segment_file import PageHead
from warrenmq.storage.catalog import CatalogFile, CatalogTooNew
from warrenmq.storage.catalog_rescue import rescue
from warrenmq.storage.data_dir import FORMAT_VERSION
from warrenmq.storage.definition_records import CatalogError, Definition, decode_operation
from warrenmq.storage.positions import LoggedQueue, Positions, read_epoch, record_positions

CATALOG = "catalog.sqlite"
LOG, QUEUES, SEEN, TRANSIENT, ASIDE = "log", "queues", "seen", "transient", "lost+damaged"

# Kinds of files, in the order they are shown.
KINDS = (
    "folder",
    "catalog",
    "log",
    "log spare",
    "segment",
    "deletion marks",
    "ids",
    "transient",
    "set aside",
    "unknown",
)

Progress = Callable[[str, int, int], None]


class CheckError(Exception):
    """The folder cannot be looked at; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as a clean stop leaves it; `lost` says what cannot be read any more."""

    kind: str
    file: str
    text: str
    is_damage: bool
    lost: str = ""
    queue: str = ""


@dataclass(slots=True)
class FileKind:
    """All files of one kind."""

    name: str
    files: int = 0
    size: int = 0
    damaged: int = 0
    remarks: int = 0


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A durable queue, and how many messages it would start with."""

    vhost: str
    name: str
    id: int
    type: str
    messages: int


@dataclass(slots=True)
class CheckReport:
    """What is in a data folder."""

    folder: str
    version: str = ""
    kinds: list[FileKind] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    queues: list[FoundQueue] = field(default_factory=list)
    definitions: dict[str, int] = field(default_factory=dict)
    first_epoch: int = 0
    last_epoch: int = 0
    applied_epoch: int = 0

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def remarks(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_damage]


def check_folder(folder: str, progress: Progress | None = None, files: Files | None = None) -> CheckReport:
    """Look at everything; `progress` hears what is read, and how many octets of how many are done."""
    if not os.path.isdir(folder):
        raise CheckError(f"{folder} is not a folder")
    with _held(folder), ExitStack() as at_end:
        try:
            return _Check(folder, progress, files or Files(), at_end).run()
        except (UnknownVersion, CatalogTooNew) as error:
            raise CheckError(str(error)) from None
        except OSError as error:
            raise CheckError(f"cannot read {error.filename or folder}: {error.strerror}") from None


@contextmanager
def _held(folder: str) -> Iterator[None]:
    """Keep brokers out, without leaving a trace. A copy of a data folder may have no lock."""
    try:
        handle = os.open(os.path.join(folder, "lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise CheckError(f"cannot read {os.path.join(folder, 'lock')}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(handle, 32).decode(errors="replace").strip()
        os.close(handle)
        who = f" (process {owner})" if owner else ""
        raise CheckError(f"the data folder {folder} is in use by a broker{who}: stop it first") from None
    try:
        yield
    finally:
        os.close(handle)


class _Check:
    """One look at one folder."""

    def __init__(self, folder: str, progress: Progress | None, files: Files, at_end: ExitStack) -> None:
        self.files = files
        self.report = CheckReport(folder)
        self.folder = folder
        self._progress = progress
        self._kinds = {name: FileKind(name) for name in KINDS}
        self._sizes: dict[str, int] = {}  # by path in the folder
        self._done = 0
        self._total = 0
        self._logged: dict[int, LoggedQueue] = {}
        self._definitions: dict[str, list[Definition]] = {}
        self._catalog: CatalogFile | None = None
        self._catalog_is_whole = False
        self._at_end = at_end
        self._what = ""

    def run(self) -> CheckReport:
        self._take_inventory()
        self._check_version()
        self._check_catalog()
        self._check_log()
        self._load_definitions()
        self._check_queues()
        self._check_ids()
        self._look_at_the_rest()
        report = self.report
        report.kinds = [kind for kind in self._kinds.values() if kind.files or kind.damaged or kind.remarks]
        report.definitions = {kind: len(found) for kind, found in self._definitions.items()}
        report.queues.sort(key=lambda queue: (-queue.messages, queue.vhost, queue.name))
        return report

    # -- the folder --------------------------------------------------------------------------------------------------

    def _take_inventory(self) -> None:
        for parent, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(parent, name)
                size = os.lstat(path).st_size
                relative = os.path.relpath(path, self.folder)
                self._sizes[relative] = size
                kind = self._kinds[_kind_of(relative)]
                kind.files += 1
                kind.size += size
                if kind.name in ("catalog", "log", "segment", "deletion marks", "ids"):
                    self._total += size

    def _check_version(self) -> None:
        if "version" not in self._sizes:
            if not any(_kind_of(name) in ("catalog", "log", "segment") for name in self._sizes):
                raise CheckError(f"{self.folder} holds no data of WarrenMQ")
            self.damage("folder", "version", "the file is missing")
            return
        with open(os.path.join(self.folder, "version"), "rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
        self.report.version = text
        if text.isdecimal() and int(text) > FORMAT_VERSION:
            raise CheckError(f"{self.folder} has format version {text}, which this version of WarrenMQ cannot read")
        if text != str(FORMAT_VERSION):
            self.damage("folder", "version", f"it says {text!r} instead of {FORMAT_VERSION}")

    # -- the catalog -------------------------------------------------------------------------------------------------

    def _check_catalog(self) -> None:
        if CATALOG not in self._sizes:
            self.damage("catalog", CATALOG, "the file is missing", "definitions that the log no longer has")
            return
        self._tell("catalog")
        self._catalog = self._open_catalog(os.path.join(self.folder, CATALOG))
        if self._catalog is not None:
            self.report.applied_epoch = self._catalog.applied_epoch
        self._catalog_is_whole = not self._kinds["catalog"].damaged
        self.advance(self._kinds["catalog"].size)

    def _open_catalog(self, path: str) -> CatalogFile | None:
        """A copy of it; where it cannot be read, a copy of what can be saved, as a start would do."""
        try:
            catalog = CatalogFile.open_copy(path)
            self._at_end.callback(catalog.close)
            for problem in catalog.check():
                self.damage("catalog", CATALOG, problem)
            catalog.snapshot()
            return catalog
        except CatalogTooNew:
            raise
        except CatalogError as error:
            if not self._kinds["catalog"].damaged:
                self.damage("catalog", CATALOG, str(error))
        folder = self._at_end.enter_context(TemporaryDirectory(prefix="warren-check-"))
        try:
            for loss in rescue(path, os.path.join(folder, CATALOG)):
                self.damage("catalog", CATALOG, "not all of it can be saved", loss)
            catalog = CatalogFile.open(os.path.join(folder, CATALOG))
        except CatalogError as error:
            self.damage("catalog", CATALOG, str(error), "all definitions that the log no longer has")
            return None
        self._at_end.callback(catalog.close)
        return catalog

    # -- the log -----------------------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        self._tell("log")
        before = self._done
        scan = read_log(self.files, os.path.join(self.folder, LOG), lambda done, _: self._advance_to(before + done))
        for epoch in scan:
            self.report.first_epoch = self.report.first_epoch or epoch.sequence
            try:
                operations = [decode_operation(found) for found in read_epoch(bytes(epoch.payload), self._logged)]
                if operations and self._catalog is not None:
                    self._catalog.apply(epoch.sequence, operations)  # to the copy; it knows what it has already
            except (JournalError, CatalogError) as error:
                self.damage("log", _in_log(epoch.file), f"epoch {epoch.sequence} makes no sense: {error}")
        self.report.last_epoch = scan.last_sequence
        for damage in scan.damage:
            lost = "" if damage.lost is None else "epochs {} to {}".format(*damage.lost)
            self.damage("log", _in_log(damage.file), f"at offset {damage.offset}: {damage.reason}", lost)
        if scan.torn_tail is not None:
            torn = scan.torn_tail
            text = f"the last {torn.size} octets were being written in a crash ({torn.reason})"
            self.remark("log", _in_log(torn.file), text)
        if scan.last_sequence and self.report.applied_epoch > scan.last_sequence:
            text = f"it is ahead of the log: epoch {self.report.applied_epoch} against {scan.last_sequence}"
            self.damage("catalog", CATALOG, text)

    def _load_definitions(self) -> None:
        """As they are after the log."""
        try:
            self._definitions = {} if self._catalog is None else self._catalog.snapshot()
        except CatalogError as error:
            self.damage("catalog", CATALOG, str(error), "definitions")

    # -- the queues --------------------------------------------------------------------------------------------------

    def _check_queues(self) -> None:
        owners = {definition["id"]: definition for definition in self._definitions.get("queue", [])}
        folders = sorted(int(name) for name in self.files.list(os.path.join(self.folder, QUEUES)) if name.isdecimal())
        for number in folders:
            owner = owners.pop(number, None)
            self._tell(f"queue {number}" if owner is None else f"queue {_shown(owner['name'])}")
            alive = self._check_segments(number, owner)
            if owner is not None:
                self._keep(owner, alive.count())
            elif self._catalog_is_whole:
                self.remark("segment", os.path.join(QUEUES, str(number)), "the folder of a queue that was deleted")
            else:
                text = "the folder of a queue that is not in the catalog"
                self.damage("segment", os.path.join(QUEUES, str(number)), text, f"up to {alive.count():,} messages")
        for number, owner in owners.items():
            logged = self._logged.get(number)
            self._keep(owner, 0 if logged is None else logged.alive_above(-1).count())

    def _keep(self, definition: Definition, messages: int) -> None:
        found = FoundQueue(definition["vhost"], definition["name"], definition["id"], _type_of(definition), messages)
        self.report.queues.append(found)

    def _check_segments(self, number: int, owner: Definition | None) -> Positions:
        """Read all files of one queue; the positions that are alive."""
        place = os.path.join(QUEUES, str(number))
        name = "" if owner is None else _shown(owner["name"])
        is_stream = owner is not None and _type_of(owner) == "stream"
        queue = _QueueFiles(self, place, name, is_stream, self._logged.get(number))
        names = self.files.list(os.path.join(self.folder, place))
        newest: dict[int, int] = {}
        marks: set[tuple[int, int]] = set()
        for name in names:
            parsed = segment_file.parse_name(name)
            if parsed is None:
                self.remark("segment", os.path.join(place, name), _leftover(name))
                continue
            first, generation, suffix = parsed
            if suffix == "seg":
                newest[first] = max(newest.get(first, -1), generation)
            else:
                marks.add((first, generation))
        for name in names:
            parsed = segment_file.parse_name(name)
            if parsed is not None and newest.get(parsed[0]) != parsed[1]:
                kind = "segment" if parsed[2] == "seg" else "deletion marks"
                self.remark(kind, os.path.join(place, name), "left over from a compaction that a crash ended")
                self.advance(self._sizes.get(os.path.join(place, name), 0))
        segments = sorted(newest.items())
        for index, (first, generation) in enumerate(segments):
            following = segments[index + 1][0] if index + 1 < len(segments) else None
            queue.read_segment(first, generation, (first, generation) in marks, following)
        return queue.alive()

    def _check_ids(self) -> None:
        """What queues and exchanges have seen: every checksum; whose they are is the next start's business."""
        names = sorted(name for name in self._sizes if _kind_of(name) == "ids")
        for at, file in enumerate(names):
            found = read_ids(self.files, os.path.join(self.folder, file))
            if found.fault is not None and at and _owner_of(names[at - 1]) == _owner_of(file):
                self.remark("ids", file, f"it was being written in a crash ({found.fault})")
            elif found.fault is not None:
                self.damage("ids", file, found.fault, "ids: duplicates of what it knew may pass")
            self.advance(self._sizes[file])

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _look_at_the_rest(self) -> None:
        for name in self._sizes:
            kind = _kind_of(name)
            if kind == "unknown":
                self.remark(kind, name, "no file of WarrenMQ")
        if self._kinds["set aside"].files:
            self.remark("set aside", ASIDE, "an earlier start moved damaged files here")

    # -- telling -----------------------------------------------------------------------------------------------------

    def damage(self, kind: str, file: str, text: str, lost: str = "", queue: str = "") -> None:
        self._kinds[kind].damaged += 1
        self.report.findings.append(Finding(kind, file, text, True, lost, queue))

    def remark(self, kind: str, file: str, text: str, queue: str = "") -> None:
        self._kinds[kind].remarks += 1
        self.report.findings.append(Finding(kind, file, text, False, queue=queue))

    def _tell(self, what: str) -> None:
        if self._progress is not None:
            self._progress(what, self._done, self._total)
        self._what = what

    def advance(self, size: int) -> None:
        self._advance_to(self._done + size)

    def _advance_to(self, done: int) -> None:
        self._done = min(done, self._total)
        if self._progress is not None:
            self._progress(self._what, self._done, self._total)


class _QueueFiles:
    """The segments of one queue, read one behind the other."""

    def __init__(self, check: _Check, place: str, name: str, is_stream: bool, logged: LoggedQueue | None) -> None:
        self._check = check
        self._place = place
        self._name = name
        self._is_stream = is_stream
        self._logged = logged
        self._living = Positions()
        self._last = -1  # the last position on disk
        self._has_damage = False  # in the segment before: then it is known why positions are missing
        self._is_torn = False

    def alive(self) -> Positions:
        """What is in pages and not dead, and what only the log has."""
        if self._logged is not None:
            self._logged.bury(self._living)
            self._living.add_all(self._logged.alive_above(self._last))
        return self._living

    def read_segment(self, first: int, generation: int, has_marks: bool, following: int | None) -> None:
        """`following` is where the next segment begins, if there is one."""
        file = os.path.join(self._place, segment_file.segment_name(first, generation))
        if self._is_torn:
            self._check.remark("segment", file, "behind one that was being written in a crash: the log has it")
            return
        if self._is_stream and 0 <= self._last < first - 1 and not self._has_damage:
            self._trouble(file, None, "what stood before it is missing", self._last + 1, first - 1)
            if self._is_torn:
                return
        self._has_damage = False
        found = Positions()
        try:
            self._read_pages(file, first, following, found)
            if has_marks:
                self._read_marks(os.path.join(self._place, segment_file.dead_name(first, generation)), first, found)
        except OSError as error:
            self._check.damage("segment", file, f"it cannot be read: {error.strerror}", queue=self._name)
        self._living.add_all(found)

    def _read_pages(self, file: str, named: int, following: int | None, found: Positions) -> None:
        check = self._check
        path = os.path.join(check.folder, file)
        handle = check.files.open_read(path)
        try:
            walk = segment_file.walk_pages(check.files, handle, path)
            if walk.pages and walk.pages[0].first <= self._last:
                text = f"it begins with position {walk.pages[0].first}, but the one before ends with {self._last}"
                check.damage("segment", file, text, queue=self._name)
            for page in walk.pages:
                try:
                    payload = segment_file.read_payload(check.files, handle, page, path)
                    positions = record_positions(page, payload, path)
                except DamagedPage as error:
                    self._trouble(file, page, error.why, page.first, page.last)
                else:
                    self._last = max(self._last, page.last)
                    for position, flags in positions:
                        if flags & PERSISTENT:
                            found.add(position)
                check.advance(page.end - page.offset)
                if self._is_torn:
                    return
            if walk.reason is not None:
                if following is None:
                    following = _first_page_behind(check.files, handle, walk.end)
                beyond = None if following is None else following - 1
                self._trouble(file, None, walk.reason, max(self._last + 1, named), beyond)
        finally:
            check.files.close(handle)

    def _trouble(self, file: str, page: PageHead | None, why: str, first: int, last: int | None) -> None:
        """A page is not whole: torn, if the log still has all that came from there on, otherwise lost.

        One of transient messages was never synced, and would not outlive a stop: nothing is lost with it.
        """
        logged = self._logged
        where = "" if page is None else f"the page at offset {page.offset}: "
        is_transient = page is not None and page.transient == page.count
        if logged is not None and logged.first_append >= 0 and (last is None or last >= logged.first_append):
            self._is_torn = True
            if page is None or is_transient or first >= logged.first_append or first in logged.appended:
                self._check.remark("segment", file, f"{where}it was being written in a crash ({why})", self._name)
            else:
                lost = f"positions {first} to {logged.first_append - 1}"
                self._check.damage("segment", file, f"{where}{why}", lost, self._name)
            return
        if page is not None and is_transient:
            self._last = max(self._last, page.last)
            self._check.remark("segment", file, f"{where}{why}; it held transient messages only", self._name)
            return
        self._has_damage = True
        if page is not None:
            lost = f"positions {first} to {last}, up to {page.count:,} messages"
            self._last = max(self._last, page.last)
        else:
            lost = f"positions from {first}" + ("" if last is None else f" to {last}")
        self._check.damage("segment", file, f"{where}{why}", lost, self._name)

    def _read_marks(self, file: str, first: int, found: Positions) -> None:
        marks = segment_file.read_dead(self._check.files, os.path.join(self._check.folder, file))
        for number in marks.numbers:
            found.discard(first + number)
        if marks.reason is not None and marks.is_damaged:
            text = f"at offset {marks.end}: {marks.reason}"
            self._check.damage("deletion marks", file, text, "marks: acked messages may come back", self._name)
        elif marks.reason is not None:
            text = f"its end was being written in a crash ({marks.reason})"
            self._check.remark("deletion marks", file, text, self._name)
        self._check.advance(marks.size)


def _first_page_behind(files: Files, handle: int, offset: int) -> int | None:
    """The first position of the next whole page head, if one follows: then this is no end that a crash left."""
    data = files.read(handle, files.size(handle) - offset, offset)
    for match in segment_file.PAGE_MAGICS.finditer(data, 1):
        at = match.start()
        page = segment_file.parse_page_head(data[at : at + segment_file.PAGE_HEAD_SIZE], offset + at)
        if not isinstance(page, str):
            return page.first
    return None


def _kind_of(path: str) -> str:
    """The kind of a file, by its path in the folder."""
    parts = path.split(os.sep)
    top, name = parts[0], parts[-1]
    if len(parts) == 1:
        if name in ("lock", "version", "version.tmp"):
            return "folder"
        return "catalog" if name.startswith(CATALOG) else "unknown"
    if top == LOG and len(parts) == 2:
        if parse_log_name(name) is not None:
            return "log"
        return "log spare" if name.startswith("spare-") else "unknown"
    if top == QUEUES and len(parts) == 3 and parts[1].isdecimal():
        parsed = segment_file.parse_name(name)
        if parsed is not None and parsed[2] == "dead":
            return "deletion marks"
        return "segment" if parsed is not None or name.endswith(".tmp") else "unknown"
    if top == SEEN and len(parts) == 2:
        return "ids" if parse_ids_name(name) is not None else "unknown"
    return {TRANSIENT: "transient", ASIDE: "set aside"}.get(top, "unknown")


def _owner_of(file: str) -> str:
    return os.path.basename(file).partition("-")[0]


def _type_of(definition: Definition) -> str:
    return str(queue_type_of(definition["arguments"]))


def _in_log(name: str) -> str:
    return os.path.join(LOG, name)


def _leftover(name: str) -> str:
    return "left over from a compaction that a crash ended" if name.endswith(".tmp") else "no file of WarrenMQ"


def _shown(name: str) -> str:
    """A queue's name in one line, also if it is no text."""
    return name if name.isprintable() else ascii(name)[1:-1]
