"""Checks a data folder that no broker uses, and reports its content and everything that is not as it was written.

It reads everything and changes nothing: every checksum of every file, the catalog, their consistency, and whether every
file in the manifest exists. It counts what the next start will find: messages in segments without a deletion mark, and
those in the log only. It shares the formats (`journal`) with recovery but not its decisions, so that the two can be
tested against each other.

Remains of a crash are remarks, not damage: a torn tail, a file in the making, the folder of a deleted queue. The next
start cleans them up and nothing durable is lost.

Owned by the caller, in one thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

from warrenmq.core.arguments import queue_type_of
from warrenmq.core.broker import DEFAULT_VHOST
from warrenmq.events import schema
from warrenmq.journal import segment_file
from warrenmq.journal.errors import JournalError, UnknownVersion
from warrenmq.journal.files import Files
from warrenmq.journal.ids_file import ids_name, parse_ids_name, read_ids
from warrenmq.journal.log_file import parse_log_name
from warrenmq.journal.log_scan import LogScan, read_log
from warrenmq.storage.catalog import CatalogFile, CatalogTooNew
from warrenmq.storage.catalog_rescue import rescue
from warrenmq.storage.check_queue import QueueFiles
from warrenmq.storage.data_dir import FORMAT_VERSION
from warrenmq.storage.definition_records import CatalogError, Definition, decode_operation
from warrenmq.storage.log_loss import LostEpochs, find_missing_epochs
from warrenmq.storage.manifest import FILE, FileRecord, Loss, Recorded, folder_of
from warrenmq.storage.positions import LoggedQueue, Positions, read_epoch
from warrenmq.storage.seen_store import owner_of_exchange

CATALOG = "catalog.sqlite"
LOG, QUEUES, SEEN, TRANSIENT, ASIDE = "log", "queues", "seen", "transient", "lost+damaged"

# Kinds of files, in the order of the report.
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
    """The folder cannot be checked; the text says why in one line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as a clean stop leaves it; `lost` says what is unreadable."""

    kind: str
    file: str
    text: str
    is_damage: bool
    lost: str = ""
    queue: str = ""
    lost_messages: int = 0  # maximum
    repeated_messages: int = 0  # maximum number of acknowledged messages that may be delivered again


@dataclass(slots=True)
class FileKind:
    """Totals of all files of one kind."""

    name: str
    files: int = 0
    size: int = 0
    damaged: int = 0
    remarks: int = 0


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A durable queue, and how many messages it would start with, of all priorities."""

    vhost: str
    name: str
    id: int
    type: str
    messages: int


@dataclass(slots=True)
class CheckReport:
    """The result of a check."""

    folder: str
    version: str = ""
    kinds: list[FileKind] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    queues: list[FoundQueue] = field(default_factory=list)
    definitions: dict[str, int] = field(default_factory=dict)
    first_epoch: int = 0
    last_epoch: int = 0
    applied_epoch: int = 0
    recorded_files: int = 0  # in the manifest
    has_manifest: bool = False

    @property
    def lost_messages(self) -> int:
        """The maximum number of lost messages, as far as it can be counted."""
        return sum(finding.lost_messages for finding in self.findings)

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
    """Check everything; `progress` is called with the current step, bytes read and total."""
    if not os.path.isdir(folder):
        raise CheckError(f"{folder} is not a folder")
    with _locked(folder), ExitStack() as at_end:
        try:
            return _Check(folder, progress, files or Files(), at_end).run()
        except (UnknownVersion, CatalogTooNew) as error:
            raise CheckError(str(error)) from None
        except OSError as error:
            raise CheckError(f"cannot read {error.filename or folder}: {error.strerror}") from None


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of the folder, if it has one, without changing anything. A copy of a data folder may have none."""
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
    """One check of one folder."""

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
        self._step = ""
        self._recorded = Recorded()
        self._lost_epochs = LostEpochs()

    def run(self) -> CheckReport:
        self._take_inventory()
        self._check_version()
        self._check_catalog()
        self._check_log()
        self._load_definitions()
        self._check_queues()
        self._check_ids()
        self._check_other_files()
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
                raise CheckError(f"{self.folder} is not a WarrenMQ data folder")
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
        self._begin_step("catalog")
        self._catalog = self._open_catalog(os.path.join(self.folder, CATALOG))
        if self._catalog is not None:
            self.report.applied_epoch = self._catalog.applied_epoch
        self._catalog_is_whole = not self._kinds["catalog"].damaged
        self.advance(self._kinds["catalog"].size)

    def _open_catalog(self, path: str) -> CatalogFile | None:
        """Open a copy of the catalog; if it is unreadable, a copy of what a start would rescue."""
        try:
            catalog = CatalogFile.open_copy(path)
            self._at_end.callback(catalog.close)
            if catalog.was_created:
                self.damage("catalog", CATALOG, "the file is empty", "definitions that the log no longer has")
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
                self.damage("catalog", CATALOG, "not everything can be rescued", loss)
            catalog = CatalogFile.open(os.path.join(folder, CATALOG))
        except CatalogError as error:
            self.damage("catalog", CATALOG, str(error), "all definitions that the log no longer has")
            return None
        self._at_end.callback(catalog.close)
        return catalog

    # -- the log -----------------------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        self._begin_step("log")
        before = self._done
        scan = read_log(self.files, os.path.join(self.folder, LOG), lambda done, _: self._advance_to(before + done))
        bad_epochs: set[int] = set()
        for epoch in scan:
            self.report.first_epoch = self.report.first_epoch or epoch.sequence
            try:
                operations = [decode_operation(found) for found in read_epoch(bytes(epoch.payload), self._logged)]
                if operations and self._catalog is not None:
                    self._catalog.apply(epoch.sequence, operations)  # to the copy, which skips applied epochs
            except (JournalError, CatalogError) as error:
                bad_epochs.add(epoch.sequence)
                self.damage("log", _in_log(epoch.file), f"epoch {epoch.sequence} cannot be decoded: {error}")
        self.report.last_epoch = scan.last_sequence
        for damage in scan.damage:
            lost = "" if damage.lost is None else "epochs {} to {}".format(*damage.lost)
            if damage.lost is not None:
                self._lost_epochs.add(*damage.lost)
            self.damage("log", _in_log(damage.file), f"at offset {damage.offset}: {damage.reason}", lost)
        if scan.torn_tail is not None:
            torn = scan.torn_tail
            text = (
                f"it ends in the middle of an epoch ({torn.reason}): after a crash that is normal, and nothing in it "
                "was confirmed; if there was no crash, messages of its last epochs are lost"
            )
            self.remark("log", _in_log(torn.file), text)
        self._report_missing_epochs(scan)
        if self._lost_epochs:
            self._lost_epochs.read(read_log(self.files, os.path.join(self.folder, LOG)), bad_epochs)
            self.remark("log", LOG, self._lost_epochs.consequences())

    def _report_missing_epochs(self, scan: LogScan) -> None:
        if self._catalog is None:
            return
        for gap in find_missing_epochs(scan, self._catalog.released_epoch, self.report.applied_epoch):
            if gap.is_needed:
                self._lost_epochs.add(gap.first, gap.last, is_end_known=gap.is_end_known)
                end = "" if not gap.is_end_known else f" to {gap.last}"
                self.damage("log", LOG, gap.text, f"epochs from {gap.first}{end}")
            else:
                self.remark("log", LOG, gap.text)

    def _load_definitions(self) -> None:
        """Load the definitions as they are after the log."""
        try:
            self._definitions = {} if self._catalog is None else self._catalog.snapshot()
        except CatalogError as error:
            self.damage("catalog", CATALOG, str(error), "definitions")
        if self._catalog is not None:
            files = self._definitions.pop(FILE, [])
            self._recorded = Recorded.of(files, self._catalog.released_epoch)
            self.report.recorded_files = len(files)
            self.report.has_manifest = self._recorded.is_complete

    # -- the queues --------------------------------------------------------------------------------------------------

    def _check_queues(self) -> None:
        queues = self._definitions.get("queue", [])
        owners = {definition["id"]: definition for definition in queues}
        by_name = {(definition["vhost"], definition["name"]): definition for definition in queues}
        for level in self._definitions.pop("level", []):
            if (level["vhost"], level["queue"]) in by_name:
                owners[level["id"]] = by_name[level["vhost"], level["queue"]]
        messages = dict.fromkeys(by_name, 0)
        folders = {int(name) for name in self.files.list(os.path.join(self.folder, QUEUES)) if name.isdecimal()}
        recorded = {number for number in owners if folder_of(number) in self._recorded.folders}
        for number in sorted(folders | recorded):
            owner = owners.pop(number, None)
            self._begin_step(f"queue {number}" if owner is None else f"queue {_printable(owner['name'])}")
            alive = self._check_segments(number, owner)
            if owner is not None:
                messages[owner["vhost"], owner["name"]] += alive.count()
            elif self._catalog_is_whole:
                self.remark("segment", os.path.join(QUEUES, str(number)), "folder of a deleted queue")
            else:
                text = "folder of a queue that is not in the catalog"
                loss = Loss(alive.count(), False)
                self.damage("segment", os.path.join(QUEUES, str(number)), text, str(loss), messages=loss.count)
        for number, owner in owners.items():
            self._count_lost_in_log(number, _printable(owner["name"]), -1)
            logged = self._logged.get(number)
            if logged is not None:
                messages[owner["vhost"], owner["name"]] += logged.alive_above(-1).count()
        for (vhost, name), definition in by_name.items():
            found = FoundQueue(vhost, name, definition["id"], _type_of(definition), messages[vhost, name])
            self.report.queues.append(found)

    def _check_segments(self, number: int, owner: Definition | None) -> Positions:
        """Check all files of one queue; return the live positions."""
        place = folder_of(number)
        name = "" if owner is None else _printable(owner["name"])
        records = self._recorded.segments(place)
        if owner is not None and (owner["vhost"], owner["name"]) == (DEFAULT_VHOST, schema.STREAM_NAME):
            # The event log bypasses the commit log: what was not synced may be missing.
            records = {first: record for first, record in records.items() if self._recorded.is_binding(record)}
        is_stream = owner is not None and _type_of(owner) == "stream"
        logged = self._logged.get(number)
        queue = QueueFiles(self, place, name, logged, self._recorded, records if owner is not None else {}, is_stream)
        alive = queue.read()
        if owner is not None:
            self._count_lost_in_log(number, name, queue.last)
        return alive

    def _count_lost_in_log(self, number: int, name: str, last_on_disk: int) -> None:
        loss = self._lost_epochs.count(number, last_on_disk)
        if loss.count:
            self.damage("log", LOG, "epochs of the log are lost", str(loss), name, loss.count)

    def _check_ids(self) -> None:
        """Check the ids of queues and exchanges: every checksum, and that all recorded files exist."""
        names = sorted(name for name in self._sizes if _kind_of(name) == "ids")
        records = {
            os.path.join(SEEN, ids_name(int(record.name, 16), record.generation)): record
            for record in self._recorded.folders.get(SEEN, {}).values()
            if self._recorded.is_binding(record)
        }
        owners = set(map(_owner_of, names))
        for file, record in records.items():
            if record.name not in owners:
                self.damage("ids", file, "the file is missing", _lost_ids(record), self._owner_name(record.name))
        for at, file in enumerate(names):
            found = read_ids(self.files, os.path.join(self.folder, file))
            if found.fault is not None and file in records:
                self.damage("ids", file, found.fault, _lost_ids(records[file]), self._owner_name(_owner_of(file)))
            elif found.fault is not None and (
                self._recorded.is_complete or (at and _owner_of(names[at - 1]) == _owner_of(file))
            ):
                self.remark("ids", file, f"it was torn by a crash ({found.fault})")
            elif found.fault is not None:
                self.damage("ids", file, found.fault, "ids: duplicates may pass")
            self.advance(self._sizes[file])

    def _owner_name(self, owner: str) -> str:
        """Return the name of the queue or exchange that owns the ids."""
        number = int(owner, 16)
        for queue in self._definitions.get("queue", []):
            if queue["id"] == number:
                return _printable(queue["name"])
        for exchange in self._definitions.get("exchange", []):
            if owner_of_exchange(exchange["vhost"], exchange["name"]) == number:
                return _printable(exchange["name"])
        return ""

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _check_other_files(self) -> None:
        for name in self._sizes:
            kind = _kind_of(name)
            if kind == "unknown":
                self.remark(kind, name, "not a WarrenMQ file")
        if self._kinds["set aside"].files:
            self.remark("set aside", ASIDE, "an earlier start moved damaged files here")

    # -- telling -----------------------------------------------------------------------------------------------------

    def damage(
        self, kind: str, file: str, text: str, lost: str = "", queue: str = "", messages: int = 0, again: int = 0
    ) -> None:
        self._kinds[kind].damaged += 1
        self.report.findings.append(Finding(kind, file, text, True, lost, queue, messages, again))

    def remark(self, kind: str, file: str, text: str, queue: str = "") -> None:
        self._kinds[kind].remarks += 1
        self.report.findings.append(Finding(kind, file, text, False, queue=queue))

    def _begin_step(self, what: str) -> None:
        if self._progress is not None:
            self._progress(what, self._done, self._total)
        self._step = what

    def advance(self, size: int) -> None:
        self._advance_to(self._done + size)

    def _advance_to(self, done: int) -> None:
        self._done = min(done, self._total)
        if self._progress is not None:
            self._progress(self._step, self._done, self._total)


def _kind_of(path: str) -> str:
    """Return the kind of a file by its path in the folder."""
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


def _lost_ids(record: FileRecord) -> str:
    return f"up to {record.count:,} ids: duplicates of these messages may pass"


def _printable(name: str) -> str:
    """Return a name that fits in one line."""
    return name if name.isprintable() else ascii(name)[1:-1]
