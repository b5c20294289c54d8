"""The catalog on a real SQLite: what is applied stays, whole epochs only, and what is not right is noticed.

`python -m tests.storage.test_catalog FILE` writes the fixture of version 1, which is never written again.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warrenmq.core.broker import Broker
from warrenmq.protocol.values import Timestamp
from warrenmq.storage.catalog import (
    MIGRATIONS,
    SIDE_FILES,
    CatalogFile,
    CatalogFull,
    CatalogTooNew,
    LoggedCatalog,
    find_migrations,
)
from warrenmq.storage.catalog_rescue import rescue
from warrenmq.storage.definition_records import (
    KINDS,
    CatalogDamaged,
    CatalogError,
    Operation,
    checksum_of,
    decode_operation,
    encode_arguments,
    encode_operation,
)
from warrenmq.storage.memory_store import MemoryStorage

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "catalog.md"
FIXTURE = Path(__file__).parent / "fixtures" / "catalog-v1.sqlite"
NOT_UTF8 = b"caf\xe9".decode("utf-8", "surrogateescape")


def vhost(name: str = "/") -> Operation:
    return ("define", "vhost", (name,), {"name": name})


def exchange(name: str, vhost: str = "/", **arguments: Any) -> Operation:
    definition = {
        "vhost": vhost,
        "name": name,
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": True,
        "arguments": arguments,
    }
    return ("define", "exchange", (vhost, name), definition)


def queue(name: str, id: int, vhost: str = "/", **arguments: Any) -> Operation:
    definition = {
        "vhost": vhost,
        "name": name,
        "durable": True,
        "auto_delete": True,
        "arguments": arguments,
        "id": id,
    }
    return ("define", "queue", (vhost, name), definition)


def binding(
    source: str, destination: str, key: str = "", vhost: str = "/", to: str = "queue", canonical: str = ""
) -> Operation:
    definition = {
        "vhost": vhost,
        "source": source,
        "destination": destination,
        "destination_type": to,
        "routing_key": key,
        "arguments": {},
    }
    return ("define", "binding", (vhost, source, to, destination, key, canonical), definition)


def policy(name: str, vhost: str = "/", kind: str = "policy", **definition: Any) -> Operation:
    arguments = {"pattern": name, "apply-to": "all", "priority": 1.5, "definition": definition}
    return ("define", kind, (vhost, name), {"vhost": vhost, "name": name, "arguments": arguments})


def undefine(operation: Operation) -> Operation:
    return ("undefine", operation[1], operation[2])


def definition_of(operation: Operation) -> dict[str, Any]:
    assert operation[0] == "define"
    return operation[3]


def names(catalog: CatalogFile, kind: str = "queue") -> list[str]:
    return [definition["name"] for definition in catalog.load(kind)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def catalog(path: Path) -> Iterator[CatalogFile]:
    catalog = CatalogFile.open(path)
    yield catalog
    catalog.close()


def copy_of(path: Path, target: Path) -> Path:
    """The files as a killed process would leave them."""
    target.mkdir(parents=True)
    for suffix in ("", *SIDE_FILES):
        if os.path.exists(f"{path}{suffix}"):
            shutil.copy(f"{path}{suffix}", target)
    return target / path.name


EXAMPLE: list[Operation] = [
    vhost(),
    vhost("été"),
    exchange("orders", **{"alternate-exchange": "lost"}),
    exchange("audit", "été"),
    queue("invoices", 1, **{"x-max-length": 5, "nested": {"list": [1, None, "a", b"\0", Timestamp(2**63)]}}),
    queue(NOT_UTF8, 2),
    queue("", 3, "été"),
    binding("orders", "invoices", "eu.#", canonical="0a0b"),
    binding("orders", "invoices", "eu.#"),
    binding("amq.topic", NOT_UTF8, NOT_UTF8),
    binding("audit", "amq.fanout", vhost="été", to="exchange"),
]
EXAMPLE_BY_KIND = {kind: [definition_of(operation) for operation in EXAMPLE if operation[1] == kind] for kind in KINDS}


def write_fixture(path: Path) -> None:
    """The example as version 1 of the catalog keeps it, with a deleted queue behind it."""
    catalog = CatalogFile.open(path)
    catalog.apply(7, EXAMPLE)
    catalog.apply(9, [queue("short-lived", 4), undefine(queue("short-lived", 4))])
    catalog.close()


# -- opening ---------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_a_new_catalog(path: Path) -> None:
    catalog = CatalogFile.open(path)
    assert (catalog.was_created, catalog.applied_epoch, catalog.next_queue_id) == (True, 0, 1)
    assert catalog.snapshot() == {kind: [] for kind in KINDS}
    assert catalog.check() == []
    catalog.close()
    assert not CatalogFile.open(path).was_created


def test_an_empty_file_is_a_new_catalog(path: Path) -> None:
    path.touch()
    assert CatalogFile.open(path).was_created


def test_no_other_user_may_read_it(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(1, [vhost()])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_it_is_refused_without_a_folder_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="No such file or directory") as refusal:
        CatalogFile.open(tmp_path / "missing" / "catalog.sqlite")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"xy", b"no database at all\n" * 400, bytes(8192)])
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CatalogDamaged, match=r"catalog\.sqlite is damaged"):
        CatalogFile.open(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    content = path.read_bytes()
    with pytest.raises(CatalogDamaged, match="is not a catalog of WarrenMQ"):
        CatalogFile.open(path)
    assert path.read_bytes() == content


def test_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    CatalogFile.open(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 4711")
    newer.close()
    content = path.read_bytes()
    with pytest.raises(CatalogTooNew, match=r"has version 4711; this WarrenMQ reads versions up to \d+$"):
        CatalogFile.open(path)
    with pytest.raises(CatalogTooNew):
        rescue(path, path.with_name("other"))
    assert path.read_bytes() == content


def test_every_version_that_was_ever_written_is_read(path: Path) -> None:
    shutil.copy(FIXTURE, path)
    catalog = CatalogFile.open(path)
    assert (catalog.was_created, catalog.applied_epoch, catalog.next_queue_id) == (False, 9, 5)
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    assert catalog.check() == []


def drawings() -> list[bytes]:
    """The bytes of the examples in the page."""
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [re.findall(r"^\s*((?:[0-9a-f]{2} {1,2})+)", block, re.MULTILINE) for block in blocks]
    return [bytes.fromhex("".join(line).replace(" ", "")) for line in lines]


def test_the_page_draws_what_is_written(path: Path) -> None:
    text = PAGE.read_text()
    connection = sqlite3.connect(shutil.copy(FIXTURE, path))
    for table in ("meta", "vhosts", "exchanges", "queues", "bindings"):
        for (checksum,) in connection.execute(f"SELECT checksum FROM {table}"):
            assert f"| {checksum} |" in text
    connection.close()
    arguments, row, record = drawings()
    assert arguments == encode_arguments({"alternate-exchange": "lost"})
    assert f"{crc32(row):x} = {checksum_of(['/'])}" in text
    definition = definition_of(queue("invoices", 1, **{"x-max-length": 5}))
    assert record == encode_operation("queue", ("/", "invoices"), definition)


# -- migrations ------------------------------------------------------------------------------------------------------


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return shutil.copytree(MIGRATIONS, tmp_path / "migrations")


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return int(version)


def add_migration(migrations: Path, script: str) -> int:
    number = len(find_migrations(migrations)) + 1
    (migrations / f"{number:04}_next.sql").write_text(script)
    return number


def test_an_older_catalog_is_brought_to_the_newest_version(path: Path, migrations: Path) -> None:
    write_fixture(path)
    number = add_migration(migrations, "CREATE TABLE users (name TEXT); INSERT INTO users VALUES ('a;b');")
    catalog = CatalogFile.open(path, migrations)
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    catalog.close()
    assert version_of(path) == number
    CatalogFile.open(path, migrations).close()  # once is enough: a second CREATE TABLE would fail


def test_a_migration_that_fails_changes_nothing(path: Path, migrations: Path) -> None:
    write_fixture(path)
    before = version_of(path)
    number = add_migration(
        migrations, "DELETE FROM queues; CREATE TABLE users (name TEXT); INSERT INTO missing DEFAULT VALUES;"
    )
    with pytest.raises(CatalogError, match="no such table: missing"):
        CatalogFile.open(path, migrations)
    assert version_of(path) == before
    assert CatalogFile.open(path).snapshot() == EXAMPLE_BY_KIND
    assert number == before + 1


MIGRATE_AND_DIE = """
import sys
from pathlib import Path
from warrenmq.storage import crash_points
from warrenmq.storage.catalog import CatalogFile
crash_points.arm("migration.mid")
CatalogFile.open(sys.argv[1], Path(sys.argv[2]))
"""


def test_a_broker_killed_in_a_migration_finds_the_old_version(path: Path, migrations: Path) -> None:
    write_fixture(path)
    before = version_of(path)
    # More than SQLite holds in memory, so that half of a transaction lies in the file when the process dies.
    filler = "CREATE TABLE filler AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    number = add_migration(migrations, f"DELETE FROM queues; {filler} SELECT i, randomblob(300) FROM n;")
    died = subprocess.run([sys.executable, "-c", MIGRATE_AND_DIE, str(path), str(migrations)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert os.path.getsize(f"{path}-wal") > 1_000_000
    catalog = CatalogFile.open(copy_of(path, path.parent / "old"))
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    catalog.close()
    assert version_of(path.parent / "old" / path.name) == before
    CatalogFile.open(path, migrations).close()
    assert version_of(path) == number


def test_a_new_catalog_whose_making_was_killed_is_new_again(path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", MIGRATE_AND_DIE, str(path), str(MIGRATIONS)], check=False)
    assert died.returncode == -signal.SIGKILL
    catalog = CatalogFile.open(path)
    assert catalog.was_created
    assert catalog.snapshot() == {kind: [] for kind in KINDS}


def test_a_gap_in_the_migrations_is_noticed(path: Path, migrations: Path) -> None:
    (migrations / "0099_later.sql").touch()
    with pytest.raises(CatalogError, match=r"0099_later\.sql stands where migration \d+ should be"):
        CatalogFile.open(path, migrations)


def test_a_catalog_of_version_2_has_no_manifest_until_the_log_is_released(path: Path) -> None:
    shutil.copy(FIXTURE.with_name("catalog-v2.sqlite"), path)
    catalog = CatalogFile.open(path)
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    assert (catalog.applied_epoch, catalog.released_epoch) == (9, -1)
    catalog.release(12)
    catalog.close()
    assert CatalogFile.open(path).released_epoch == 12


def test_a_catalog_of_version_3_takes_policies(path: Path) -> None:
    shutil.copy(FIXTURE.with_name("catalog-v3.sqlite"), path)
    catalog = CatalogFile.open(path)
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    defined = [
        policy(NOT_UTF8, **{"max-length": 5, "ha-params": ["a", NOT_UTF8, 1], "overflow": "drop-head"}),
        policy("bound", kind="operator_policy", **{"delivery-limit": -1}),
    ]
    catalog.apply(10, defined)
    catalog.close()
    catalog = CatalogFile.open(path)
    assert [catalog.load(kind) for kind in ("policy", "operator_policy")] == [[definition_of(each)] for each in defined]
    assert catalog.check() == []
    catalog.close()


def test_a_new_catalog_has_a_manifest_from_the_beginning(catalog: CatalogFile) -> None:
    assert catalog.released_epoch == 0


# -- applying --------------------------------------------------------------------------------------------------------


def test_definitions_are_loaded_unchanged(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(1, EXAMPLE)
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    catalog.close()
    catalog = CatalogFile.open(path)
    assert catalog.snapshot() == EXAMPLE_BY_KIND
    assert catalog.check() == []


def test_undefined_definitions_are_removed(catalog: CatalogFile) -> None:
    catalog.apply(1, EXAMPLE)
    catalog.apply(2, [undefine(operation) for operation in EXAMPLE])
    assert catalog.snapshot() == {kind: [] for kind in KINDS}


def test_undefining_what_is_not_there_is_fine(catalog: CatalogFile) -> None:
    catalog.apply(1, [undefine(operation) for operation in EXAMPLE])
    assert catalog.applied_epoch == 1


def test_the_order_within_an_epoch_does_not_matter_to_it(catalog: CatalogFile) -> None:
    catalog.apply(1, list(reversed(EXAMPLE)))
    assert catalog.check() == []
    catalog.apply(2, [undefine(vhost()), undefine(queue("invoices", 1))])
    assert len(catalog.load("binding")) == 4


def test_operations_of_one_epoch_follow_each_other(catalog: CatalogFile) -> None:
    catalog.apply(1, [queue("q", 1), undefine(queue("q", 1)), queue("q", 2)])
    assert catalog.load("queue") == [definition_of(queue("q", 2))]


def test_definitions_come_in_the_order_they_were_first_saved(catalog: CatalogFile) -> None:
    catalog.apply(1, [queue("c", 1), queue("a", 2), queue("b", 3)])
    catalog.apply(2, [queue("c", 1, changed=True)])
    assert names(catalog) == ["c", "a", "b"]
    assert catalog.load("queue")[0]["arguments"] == {"changed": True}
    catalog.apply(3, [undefine(queue("c", 1)), queue("c", 4)])
    assert names(catalog) == ["a", "b", "c"]


def test_an_epoch_is_applied_once(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(5, [queue("a", 1)])
    for epoch in (5, 4):
        catalog.apply(epoch, [undefine(queue("a", 1))])
    catalog.close()
    catalog = CatalogFile.open(path)
    catalog.apply(5, [undefine(queue("a", 1))])
    assert catalog.applied_epoch == 5
    assert names(catalog) == ["a"]


def test_an_epoch_without_definitions_is_noted(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(12, [])
    catalog.close()
    assert CatalogFile.open(path).applied_epoch == 12


def test_an_epoch_is_applied_whole_or_not_at_all(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(1, [queue("a", 1)])
    with pytest.raises(CatalogError, match="has no definitions of kind 'parameter'"):
        catalog.apply(2, [queue("b", 2), ("define", "parameter", ("/", "p"), {})])
    assert (catalog.applied_epoch, catalog.next_queue_id) == (1, 2)
    assert names(catalog) == ["a"]
    catalog.apply(2, [queue("c", 2)])
    catalog.close()
    assert names(CatalogFile.open(path)) == ["a", "c"]


def test_a_full_disk_keeps_an_epoch_out_until_there_is_room(catalog: CatalogFile) -> None:
    catalog.apply(1, [queue("a", 1)])
    operations = [queue("b", 2), queue("c", 3, filler="x" * 100_000)]
    pages = catalog.connection.execute("PRAGMA page_count").fetchone()[0]
    catalog.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(CatalogFull, match="no disk space"):
        catalog.apply(2, operations)
    assert (catalog.applied_epoch, names(catalog)) == (1, ["a"])
    catalog.connection.execute("PRAGMA max_page_count = 1000000")
    catalog.apply(2, operations)
    assert (catalog.applied_epoch, names(catalog)) == (2, ["a", "b", "c"])


def test_a_queue_id_is_never_reused(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(1, [queue("a", 1), queue("b", 70_000)])
    catalog.apply(2, [undefine(queue("b", 70_000))])
    assert catalog.next_queue_id == 70_001
    catalog.apply(3, [queue("c", 3)])
    catalog.close()
    assert CatalogFile.open(path).next_queue_id == 70_001


def test_a_killed_broker_has_every_epoch_that_was_applied(path: Path, catalog: CatalogFile) -> None:
    for epoch in range(1, 20):
        catalog.apply(epoch, [queue(f"q{epoch}", epoch)])
        left = CatalogFile.open(copy_of(path, path.parent / str(epoch)))
        assert left.applied_epoch == epoch
        assert len(left.load("queue")) == epoch
        left.close()


def test_sync_puts_everything_where_no_log_is_needed(path: Path, catalog: CatalogFile) -> None:
    def without_wal(name: str) -> CatalogFile:
        left = copy_of(path, path.parent / name)
        Path(f"{left}-wal").unlink()
        return CatalogFile.open(left)

    catalog.apply(1, EXAMPLE)
    assert without_wal("before").applied_epoch == 0
    catalog.sync()
    assert without_wal("after").snapshot() == EXAMPLE_BY_KIND


def test_a_sync_without_a_descriptor_is_reported(catalog: CatalogFile) -> None:
    catalog.apply(1, EXAMPLE)
    reader = catalog.connection.execute("SELECT * FROM bindings")
    reader.fetchone()
    with pytest.raises(CatalogError):
        catalog.sync()
    reader.close()
    catalog.sync()


def test_another_thread_may_go_on_with_it(catalog: CatalogFile) -> None:
    committer = Thread(target=catalog.apply, args=(1, EXAMPLE))
    committer.start()
    committer.join()
    assert catalog.applied_epoch == 1


# Few names, so that they meet again.
few = st.sampled_from(["a", "b", "ü", NOT_UTF8])
operations = st.one_of(
    st.builds(vhost, few),
    st.builds(exchange, few, few, number=st.integers(0, 3)),
    st.builds(queue, few, st.integers(1, 50), few),
    st.builds(binding, few, few, few, few, st.sampled_from(["queue", "exchange"]), few),
    st.builds(policy, few, few, st.sampled_from(["policy", "operator_policy"]), number=st.integers(0, 3)),
)
operations |= operations.map(undefine)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.lists(operations, max_size=8), st.sampled_from(["", "restart", "kill", "replay"]))))
def test_any_history_matches_a_model_of_dictionaries(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[list[Operation], str]]
) -> None:
    path = tmp_path_factory.mktemp("history") / "catalog.sqlite"
    catalog = CatalogFile.open(path)
    model: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {kind: {} for kind in KINDS}
    highest = 0
    for epoch, (operations, then) in enumerate(history, start=1):
        catalog.apply(epoch, operations)
        for operation in operations:
            if operation[0] == "define":
                model[operation[1]][operation[2]] = operation[3]
                highest = max(highest, operation[3].get("id", 0))
            else:
                model[operation[1]].pop(operation[2], None)
        if then == "restart":
            catalog.close()
            catalog = CatalogFile.open(path)
        elif then == "kill":
            path = copy_of(path, path.parent / "next")
            catalog = CatalogFile.open(path)
        elif then == "replay":
            for number, (earlier, _) in enumerate(history[:epoch], start=1):
                catalog.apply(number, earlier)
        assert catalog.snapshot() == {kind: list(kept.values()) for kind, kept in model.items()}
        assert (catalog.applied_epoch, catalog.next_queue_id) == (epoch, highest + 1)
    catalog.close()


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "é\0ß", "\0", "😀", NOT_UTF8, "\ud800", "1", "1.0", "NULL", "'; --", "x" * 255])
def test_any_name_is_kept(path: Path, name: str) -> None:
    catalog = CatalogFile.open(path)
    defined = [vhost(name), exchange(name, name), queue(name, 1, name), binding(name, name, name, name)]
    defined += [policy(name, name, kind) for kind in ("policy", "operator_policy")]
    catalog.apply(1, defined)
    catalog.close()
    catalog = CatalogFile.open(path)
    assert catalog.snapshot() == {operation[1]: [definition_of(operation)] for operation in defined} | {
        "level": [],
        "trace_rule": [],
        "file": [],
    }
    catalog.apply(2, [undefine(operation) for operation in defined])
    assert catalog.snapshot() == {kind: [] for kind in KINDS}


def test_names_that_look_alike_in_bytes_are_different(catalog: CatalogFile) -> None:
    alike = ["é", b"\xc3".decode("utf-8", "surrogateescape") + b"\xa9".decode("utf-8", "surrogateescape"), "e\u0301"]
    catalog.apply(1, [queue(name, id) for id, name in enumerate(alike, start=1)])
    assert names(catalog) == alike


# -- does it hold together? ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "problem"),
    [
        ([queue("q", 1)], "queue 'q' in vhost '/': there is no such vhost"),
        ([exchange("e")], "exchange 'e' in vhost '/': there is no such vhost"),
        ([policy("p")], "policy 'p' in vhost '/': there is no such vhost"),
        ([policy("o", kind="operator_policy")], "operator policy 'o' in vhost '/': there is no such vhost"),
        ([binding("amq.topic", "amq.fanout", to="exchange")], "in vhost '/': there is no such vhost"),
        (
            [vhost(), queue("q", 1), binding("e", "q", "k")],
            "binding from exchange 'e' to queue 'q' by 'k' in vhost '/': its source does not exist",
        ),
        ([vhost(), binding("amq.direct", "q")], "to queue 'q' by '' in vhost '/': its destination does not exist"),
        ([vhost(), queue("q", 1), binding("amq.direct", "q", to="exchange")], "its destination does not exist"),
        (
            [vhost(), queue("q", 1), queue(NOT_UTF8, 1)],
            r"queue 'caf\udce9' in vhost '/' has the same id as queue 'q' in vhost '/': 1",
        ),
    ],
)
def test_inconsistent_definitions_are_reported(catalog: CatalogFile, operations: list[Operation], problem: str) -> None:
    catalog.apply(1, operations)
    (found,) = catalog.check()
    assert found.endswith(problem)


def test_bindings_between_predeclared_exchanges_are_fine(catalog: CatalogFile) -> None:
    catalog.apply(1, [vhost(), binding("amq.topic", "amq.fanout", to="exchange")])
    assert catalog.check() == []


def test_repair_makes_virtual_hosts_again_and_drops_loose_bindings(catalog: CatalogFile) -> None:
    catalog.apply(1, [vhost(), queue("kept", 1, "lost"), binding("amq.topic", "kept", "a", "lost")])
    catalog.apply(2, [binding("amq.topic", "gone", "b"), binding("gone", "kept", "c", "nowhere")])
    assert catalog.repair() == [
        "vhost 'lost' was missing and was created again",
        "binding from exchange 'amq.topic' to queue 'gone' by 'b' in vhost '/' was dropped: "
        "its destination does not exist",
        "binding from exchange 'gone' to queue 'kept' by 'c' in vhost 'nowhere' was dropped: its source does not exist",
    ]
    assert catalog.check() == []
    assert catalog.applied_epoch == 2
    assert names(catalog, "vhost") == ["/", "lost"]
    assert [each["routing_key"] for each in catalog.load("binding")] == ["a"]
    assert catalog.repair() == []


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement)
    connection.close()


def test_a_changed_row_is_noticed(path: Path) -> None:
    write_fixture(path)
    change(path, "UPDATE queues SET auto_delete = 0 WHERE name = 'invoices'")
    catalog = CatalogFile.open(path)
    words = "the row of queue 'invoices' in vhost '/' fails its checksum"
    with pytest.raises(CatalogDamaged, match=words):
        catalog.load("queue")
    with pytest.raises(CatalogDamaged, match=words):
        catalog.verify()
    assert catalog.check() == [words]
    assert catalog.load("exchange") == EXAMPLE_BY_KIND["exchange"]


@pytest.mark.parametrize(
    "statement",
    ["UPDATE meta SET value = 3 WHERE name = 'applied_epoch'", "DELETE FROM meta WHERE name = 'next_queue_id'"],
)
def test_changed_counters_are_noticed(path: Path, statement: str) -> None:
    write_fixture(path)
    change(path, statement)
    with pytest.raises(CatalogDamaged, match="its counters fail their checksums"):
        CatalogFile.open(path)


def test_an_id_that_was_never_assigned_is_a_problem(path: Path) -> None:
    write_fixture(path)
    change(
        path, f"UPDATE meta SET value = 3, checksum = {checksum_of(('next_queue_id', 3))} WHERE name = 'next_queue_id'"
    )
    assert CatalogFile.open(path).check() == ["queue '' in vhost 'été' has the id 3, which was never assigned"]


def test_a_copy_is_read_and_the_files_are_not_touched(path: Path, catalog: CatalogFile) -> None:
    catalog.apply(1, EXAMPLE)
    folder = copy_of(path, path.parent / "left").parent
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert f"{path.name}-wal" in before
    copy = CatalogFile.open_copy(folder / path.name)
    assert copy.snapshot() == EXAMPLE_BY_KIND
    assert copy.check() == []
    copy.apply(2, [vhost("another")])
    copy.close()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_copying_a_missing_catalog_is_refused(path: Path) -> None:
    with pytest.raises(CatalogError, match=r"cannot read the catalog .*catalog\.sqlite: No such file"):
        CatalogFile.open_copy(path)
    assert not path.exists()


def test_a_copy_of_what_is_damaged_is_refused_by_its_own_name(path: Path) -> None:
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(CatalogDamaged, match=str(path)):
        CatalogFile.open_copy(path)


# -- damage ----------------------------------------------------------------------------------------------------------


def large_catalog(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Several pages per table, everything in the one file."""
    catalog = CatalogFile.open(path)
    catalog.apply(1, [vhost(), vhost("b")])
    for number in range(1, 301):
        catalog.apply(
            number + 1,
            [
                exchange(f"e{number}", filler="x" * (number % 50)),
                queue(f"q{number}", number, **{"x-max-length": number}),
                binding(f"e{number}", f"q{number}", "k" * (number % 90)),
            ],
        )
    catalog.apply(400, [undefine(queue("q300", 300)), undefine(binding("e300", "q300", "k" * (300 % 90)))])
    snapshot = catalog.snapshot()
    catalog.close()
    assert not Path(f"{path}-wal").exists()
    return snapshot


def is_part_of(found: dict[str, list[dict[str, Any]]], whole: dict[str, list[dict[str, Any]]]) -> bool:
    return all(definition in whole[kind] for kind, definitions in found.items() for definition in definitions)


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_noticed_or_harmless(tmp_path: Path, seed: int) -> None:
    whole = large_catalog(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    chance = random.Random(seed)
    total = sum(map(len, whole.values()))
    for number in range(12):
        # Every fourth in the first page, where the schema is.
        bit = chance.randrange(8 * (4096 if number % 4 == 0 else len(content)))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(damaged)
        note = f"bit {bit}"
        try:
            catalog = CatalogFile.open_copy(path)
        except CatalogTooNew:
            continue
        except CatalogError:
            problems = ["it cannot be opened"]
        else:
            problems = catalog.check()
            if not problems:
                assert catalog.snapshot() == whole, note
                assert (catalog.applied_epoch, catalog.next_queue_id) == (400, 301), note
            catalog.close()
        if problems:
            losses = rescue(path, tmp_path / f"{number}.rescued")
            rescued = CatalogFile.open(tmp_path / f"{number}.rescued")
            found = rescued.snapshot()
            assert is_part_of(found, whole), note
            assert rescued.applied_epoch in (0, 400), note
            rescued.repair()
            assert rescued.check() == [], note
            if sum(map(len, found.values())) < total:
                assert losses, note
            rescued.close()
        assert path.read_bytes() == damaged, note


@pytest.mark.parametrize("pages", [0, 1, 5, 20])
def test_a_catalog_that_was_cut_off_is_noticed(path: Path, pages: int) -> None:
    whole = large_catalog(path)
    content = path.read_bytes()
    path.write_bytes(content[: pages * 4096 + 100])
    try:
        assert CatalogFile.open_copy(path).check() != []
    except CatalogDamaged:
        pass
    losses = rescue(path, path.with_name("rescued"))
    assert losses
    assert is_part_of(CatalogFile.open(path.with_name("rescued")).snapshot(), whole)


def test_rescue_loses_the_damaged_row_alone_and_names_it(path: Path) -> None:
    write_fixture(path)
    change(path, "UPDATE queues SET arguments = x'00' WHERE name = 'invoices'")
    assert rescue(path, path.with_name("rescued")) == ["queue 'invoices' in vhost '/' is lost"]
    rescued = CatalogFile.open(path.with_name("rescued"))
    assert (rescued.applied_epoch, rescued.next_queue_id) == (9, 5)
    assert rescued.load("queue") == EXAMPLE_BY_KIND["queue"][1:]
    assert {kind: rescued.load(kind) for kind in KINDS if kind != "queue"} == {
        kind: definitions for kind, definitions in EXAMPLE_BY_KIND.items() if kind != "queue"
    }


def test_rescue_loses_one_page_and_names_what_was_on_it(path: Path) -> None:
    whole = large_catalog(path)
    content = path.read_bytes()
    row = re.search(rb"/q150.{1,3}\0\0\0\x12\x0cx-max-length", content, re.DOTALL)
    assert row is not None
    page = row.start() // 4096 * 4096
    path.write_bytes(content[:page] + bytes(4096) + content[page + 4096 :])
    first, *losses = rescue(path, path.with_name("rescued"))
    assert first == f"the catalog {path} is damaged: database disk image is malformed"
    rescued = CatalogFile.open(path.with_name("rescued")).snapshot()
    assert is_part_of(rescued, whole)
    lost = [each["name"] for each in whole["queue"] if each not in rescued["queue"]]
    assert "q150" in lost
    assert len(lost) < 100
    assert sorted(losses) == sorted(f"queue '{name}' in vhost '/' is lost" for name in lost)
    assert [kind for kind in KINDS if rescued[kind] != whole[kind]] == ["queue"]


def test_rescue_does_not_need_the_page_that_says_where_the_tables_are(path: Path) -> None:
    whole = large_catalog(path)
    with path.open("r+b") as file:
        file.write(bytes(4096))
    assert rescue(path, path.with_name("rescued")) == [f"the catalog {path} is damaged: file is not a database"]
    rescued = CatalogFile.open(path.with_name("rescued"))
    assert rescued.snapshot() == whole
    assert (rescued.applied_epoch, rescued.next_queue_id) == (400, 301)


def test_rescue_of_an_unknown_epoch_replays_everything(path: Path) -> None:
    write_fixture(path)
    change(path, "UPDATE meta SET value = value + 1")
    (loss,) = rescue(path, path.with_name("rescued"))
    assert loss.endswith("its counters fail their checksums")
    rescued = CatalogFile.open(path.with_name("rescued"))
    assert (rescued.applied_epoch, rescued.next_queue_id) == (0, 4)
    rescued.apply(7, EXAMPLE)
    assert rescued.snapshot() == EXAMPLE_BY_KIND


def test_rescue_of_garbage_makes_an_empty_catalog_and_reports_it(path: Path) -> None:
    path.write_bytes(b"rubbish" * 1000)
    assert rescue(path, path.with_name("rescued")) == [f"the catalog {path} is damaged: file is not a database"]
    assert CatalogFile.open(path.with_name("rescued")).snapshot() == {kind: [] for kind in KINDS}


# -- the loop's side -------------------------------------------------------------------------------------------------


class RecordingLog:
    """Gathers an epoch as the commit log does, and what is to be applied to the catalog."""

    def __init__(self) -> None:
        self.epoch: list[Operation] = []
        self._said: tuple[bool, bytes] | None = None

    def put_definition(self, is_define: bool, encoded: bytes) -> int:
        assert self._said is None
        self._said = is_define, encoded
        return 7

    def add(self, epoch: int, operation: Operation) -> None:
        assert self._said is not None
        is_define, encoded = self._said
        self._said = None
        assert epoch == 7
        assert is_define == (operation[0] == "define")
        assert decode_operation(encoded) == operation
        self.epoch.append(operation)

    def take(self) -> list[Operation]:
        taken, self.epoch = self.epoch, []
        return taken


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


def save(catalog: LoggedCatalog, operation: Operation) -> None:
    definition = dict(definition_of(operation))
    definition.pop("id", None)
    catalog.save(operation[1], operation[2], definition)


def test_definitions_go_into_the_open_epoch_in_order(log: RecordingLog) -> None:
    catalog = LoggedCatalog(log, log, {}, 1)
    for operation in EXAMPLE:
        save(catalog, operation)
    catalog.delete("queue", ("/", "invoices"))
    assert log.take() == [*EXAMPLE, ("undefine", "queue", ("/", "invoices"))]


def test_a_queue_has_one_id_until_it_is_deleted(log: RecordingLog) -> None:
    catalog = LoggedCatalog(log, log, {"queue": [definition_of(queue("old", 3))]}, 8)
    assert catalog.queue_id("/", "old") == 3
    assert catalog.queue_id("/", "new") == 8
    assert catalog.queue_id("other", "new") == 9
    save(catalog, queue("new", 8))
    assert catalog.queue_id("/", "new") == 8
    catalog.delete("queue", ("/", "new"))
    assert catalog.queue_id("/", "new") == 10
    save(catalog, queue("new", 10))
    assert [operation[3]["id"] for operation in log.take() if operation[0] == "define"] == [8, 10]


def test_ids_of_queues_end_somewhere(log: RecordingLog) -> None:
    catalog = LoggedCatalog(log, log, {}, 0xFFFF_FFFF)
    assert catalog.queue_id("/", "last") == 0xFFFF_FFFF
    with pytest.raises(CatalogError, match="all queue ids"):
        catalog.queue_id("/", "one too many")


def test_the_start_is_loaded_once(log: RecordingLog) -> None:
    catalog = LoggedCatalog(log, log, EXAMPLE_BY_KIND, 5)
    assert {kind: catalog.load(kind) for kind in KINDS} == EXAMPLE_BY_KIND
    with pytest.raises(CatalogError, match="loaded already"):
        catalog.load("queue")


def test_the_definition_that_the_core_holds_is_not_changed(log: RecordingLog) -> None:
    definition = {key: value for key, value in definition_of(queue("q", 1)).items() if key != "id"}
    LoggedCatalog(log, log, {}, 1).save("queue", ("/", "q"), definition)
    assert "id" not in definition


def test_a_broker_finds_what_an_earlier_one_defined(path: Path, catalog: CatalogFile, log: RecordingLog) -> None:
    def start() -> Broker:
        storage = MemoryStorage()
        storage.catalog = LoggedCatalog(log, log, catalog.snapshot(), catalog.next_queue_id)  # type: ignore[assignment]
        return Broker(storage)

    def topology(broker: Broker) -> Any:
        return {
            name: (
                {each.name: (each.type, each.arguments) for each in vhost.exchanges.values()},
                {each.name: (each.is_auto_delete, each.arguments) for each in vhost.queues.values()},
                {
                    (each.source.name, each.destination.name, each.key, each.canonical_arguments)
                    for each in vhost.bindings
                },
            )
            for name, vhost in broker.vhosts.items()
        }

    first = start()
    host = first.vhosts["/"]
    orders = host.declare_exchange("orders", "headers", True, False, False, {"alternate-exchange": "amq.fanout"})
    passing = host.declare_exchange("passing", "topic", True, True, False, {})
    for name in ("a", "b", "c"):
        kept = host.declare_queue(name, True, False, False, {"x-max-length": 3, "name": name}, None)
        host.bind("orders", kept, "", {"x-match": "any", "h": [1, {"two": 2.5}]})
        host.bind("passing", kept, "a.#", {})
    host.bind("amq.topic", passing, "x", {})
    host.bind("amq.topic", orders, "x", {})
    first.add_vhost("other").declare_queue("a", True, False, True, {}, None)
    catalog.apply(1, log.take())
    assert catalog.check() == []
    assert topology(start()) == topology(first)

    for name in ("a", "b", "c"):
        host.delete_queue(name, None, False, False)  # with the last one goes the auto-delete exchange
    host.declare_queue("a", True, False, False, {}, None)
    first.delete_vhost("other")
    catalog.apply(2, log.take())
    assert catalog.check() == []
    assert topology(start()) == topology(first)
    assert log.take() == []


if __name__ == "__main__":
    write_fixture(Path(sys.argv[1]))
