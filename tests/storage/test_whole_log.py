"""The log is the whole truth: a folder that gets nothing but another one's epochs holds the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.properties.test_paged_queue import DURABLE, World
from tests.storage.driver import Kept
from tests.support.crash import effort
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.stream import Stream
from warrenmq.journal.files import SystemFiles
from warrenmq.journal.log_scan import read_log
from warrenmq.journal.log_writer import LogWriter

WHOLE = {"log_limit": 1 << 40, "log_file_size": 1 << 20, "relog_below": 3000}  # nothing is ever trimmed
STREAM = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 1500}
ONCE = {"x-message-deduplication": True}


def replay(source: Path, target: Path) -> Kept:
    """Open a new folder that holds the epochs of another one, and nothing else."""
    files = SystemFiles()
    writer = LogWriter(files, str(target / "log"), 1)
    for epoch in read_log(files, str(source / "log")):
        writer.append(bytes(epoch.payload), epoch.sequence, epoch.time_ms)
    writer.sync()
    writer.close()
    (target / "version").write_text("1\n")
    replayed = Kept(target)
    assert replayed.storage.report == []
    return replayed


def definitions(kept: Kept) -> Any:
    vhost = kept.broker.vhosts["/"]
    return (
        {name: (type(queue), queue.arguments) for name, queue in vhost.queues.items() if queue.is_durable},
        {name: (exchange.type, exchange.arguments) for name, exchange in vhost.exchanges.items()},
        {
            (binding.source.name, binding.destination.name, binding.key)
            for exchange in vhost.exchanges.values()
            for binding in vhost.bindings.of_source(exchange)
            if not isinstance(binding.destination, ClassicQueue) or binding.destination.is_durable
        },
    )


def contents(kept: Kept) -> dict[str, Any]:
    """Everything durable in the queues and streams: positions, bodies, deliveries; and what comes next."""
    found: dict[str, Any] = {}
    for name, queue in kept.broker.vhosts["/"].queues.items():
        if isinstance(queue, ClassicQueue) and queue.is_durable:
            end = queue.backlog.next_position
            stored = [entry for entry in kept.take_all(name) if entry.epoch > 0]
            counts = queue.backlog.counts_attempts
            found[name] = (
                end,
                [(entry.position, entry.message.body, entry.attempts if counts else 0) for entry in stored],
            )
        elif isinstance(queue, Stream):
            found[name] = (queue.store.first_position, queue.next_position, read_all(kept, queue))
    return found


def read_all(kept: Kept, stream: Stream) -> list[tuple[int, bytes]]:
    read: list[tuple[int, bytes]] = []
    offset = stream.first_offset
    while offset < stream.readable:
        pages: list[tuple[int, Any]] = []
        stream.read(offset, lambda first, messages, pages=pages: pages.append((first, messages)))  # type: ignore[misc]
        kept.settle()
        ((first, messages),) = pages
        read += [(first + at, message.body) for at, message in enumerate(messages)]
        offset = first + len(messages)
    return read


def fill_stream(kept: Kept, limit: int) -> Stream:
    """Publish until retention has removed segments, by a limit that holds only meanwhile: no later start knows it."""
    stream = kept.broker.vhosts["/"].queues["s"]
    assert isinstance(stream, Stream)
    options = stream.options
    kept.channel.vhost.apply(stream, replace(options, max_length_bytes=limit))
    first, number = stream.first_offset, 0
    while stream.first_offset == first:
        kept.storage.run_all()
        kept.publish([number], "s")
        kept.turn()
        kept.storage.log.flush()
        while kept.storage.committer.run_one():
            pass
        number += 1
    kept.channel.vhost.apply(stream, options)
    return stream


def test_queues_streams_definitions_and_ids_come_from_the_epochs_alone(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "source", **WHOLE)
    kept.channel.declare_exchange("x", "topic", durable=True)
    for name, arguments in (("plain", {}), ("counted", {"x-queue-type": "quorum"}), ("once", ONCE), ("s", STREAM)):
        kept.channel.bind("x", kept.declare(name, **arguments), f"{name}.#")
    gone = kept.declare("gone")
    kept.publish(range(300), "plain")
    kept.publish(range(10), "counted")
    kept.publish(range(10), "gone")
    fill_stream(kept, limit=4000)
    for number in range(6):
        kept.channel.publish(
            b"%d" % number, "once", delivery_mode=2, headers={"x-deduplication-header": f"id {number % 4}"}
        )
        if number == 1:
            kept.checkpoint()  # these ids are in a file
        elif number == 3:
            kept.checkpoint(carry=True)  # these are logged again
    kept.ack(kept.take(20, "plain")[::3])
    taken = kept.take(3, "counted")
    for entry in taken:
        entry.attempts += 1
    kept.queue("counted").requeue(taken)
    kept.ack(kept.take(4, "once")[2:])
    kept.drain("gone")
    kept.channel.delete(gone)
    kept.declare("empty")
    kept.publish(range(5), "empty")
    kept.drain("empty")
    kept.settle()
    kept.crash()
    kept.open()
    stream = kept.broker.vhosts["/"].queues["s"]
    assert isinstance(stream, Stream)
    assert stream.first_offset > 0, "retention has removed something"
    replayed = replay(tmp_path / "source", tmp_path / "target")
    assert definitions(replayed) == definitions(kept)
    expected = contents(kept)
    assert expected["empty"] == (5, [])
    assert contents(replayed) == expected
    for each in (kept, replayed):
        for number in range(4):  # the last two were acked, and their ids forgotten with them
            each.channel.publish(b"", "once", delivery_mode=2, headers={"x-deduplication-header": f"id {number}"})
    accepted = contents(kept)["once"]
    assert len(accepted[1]) == 2
    assert contents(replayed)["once"] == accepted


def test_what_retention_removed_does_not_come_back_if_its_files_were_not_removed(tmp_path: Path) -> None:
    kept = Kept(tmp_path, **WHOLE)
    kept.declare("s", **STREAM)
    stream = fill_stream(kept, limit=4000)
    first = stream.first_offset
    kept.turn()
    kept.storage.log.flush()
    while kept.storage.committer.run_one():
        pass
    names = sorted(path.name for path in Path(stream.store.folder).iterdir())  # type: ignore[attr-defined]
    assert int(names[0][:20]) < first, "the files are still there"
    kept.restart(clean=False)
    stream = kept.broker.vhosts["/"].queues["s"]
    assert isinstance(stream, Stream)
    assert stream.first_offset == first
    names = sorted(path.name for path in Path(stream.store.folder).iterdir())  # type: ignore[attr-defined]
    assert int(names[0][:20]) == first


@pytest.mark.parametrize("seed", range(effort(12)))
def test_any_history_comes_from_the_epochs_alone(tmp_path: Path, seed: int) -> None:
    """A replay restores an equal backlog, whatever was published, settled, purged, deleted and restarted."""
    world = World(tmp_path / "source", seed, **WHOLE)
    for _ in range(60):
        step = world.random.choice(("publish", "publish", "publish", "get_and_settle", "settle", "get", "give_back"))
        getattr(world, step)()
        if world.random.random() < 0.1:
            getattr(world, world.random.choice(("purge", "delete", "transaction", "crash")))()
    world.crash()
    replayed = replay(tmp_path / "source", tmp_path / "target")
    for name in DURABLE:
        assert replayed.queue(name).backlog.body_bytes == world.kept.queue(name).backlog.body_bytes
        assert replayed.queue(name).backlog.waiting == world.kept.queue(name).backlog.waiting
    assert definitions(replayed) == definitions(world.kept)
    # Positions of transient messages are not in the log, so the next one may be lower than where they were.
    expected = {name: stored for name, (_, stored) in contents(world.kept).items()}
    assert {name: stored for name, (_, stored) in contents(replayed).items()} == expected
