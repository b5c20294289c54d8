"""The event log: batches in a stream, rows that a durable turn keeps, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client import PERSISTENT, ClientChannel
from tests.support.crash import History, effort
from tests.support.disk import RecordingFiles
from tests.support.durable import ROOT, TINY, Life
from tests.support.tracing import ALL, TracedBroker, story
from warrenmq.core.message import Message
from warrenmq.core.restore import restore_queue
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.events.schema import Event
from warrenmq.protocol import properties
from warrenmq.storage.memory_store import MemoryStorage
from warrenmq.tracing import log as log_module
from warrenmq.tracing.log import EventLog
from warrenmq.tracing.recorder import BATCH_ROWS


@pytest.fixture
def traced() -> TracedBroker:
    return TracedBroker()


@pytest.fixture
def channel(traced: TracedBroker) -> ClientChannel:
    channel = traced.client().channel()
    channel.declare("q")
    return channel


def messages_of(traced: TracedBroker) -> list[Message]:
    pages: list[list[Message]] = []
    store: Any = traced.broker.vhosts["/"].queues[schema.STREAM_NAME].store
    store.read(0, lambda first, messages: pages.append(messages))
    return pages[0]


def test_a_batch_is_one_message_of_the_stream(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.publish_all("abc", "q")
    traced.make_batch()
    channel.publish_all("d", "q")
    traced.make_batch()
    stream = traced.broker.vhosts["/"].queues[schema.STREAM_NAME]
    assert stream.is_durable
    assert stream.arguments["x-queue-type"] == "stream"
    assert (stream.arguments["x-max-age"], stream.arguments["x-max-length-bytes"]) == ("7D", 10 * 1024**3)
    first, second = messages_of(traced)
    assert first.properties.content_type == schema.CONTENT_TYPE
    headers = properties.headers(first.header) or {}
    batch = decode(first.body)
    assert headers[schema.HEADER_VERSION] == schema.VERSION
    assert headers[schema.HEADER_ROWS] == batch.count
    assert (headers[schema.HEADER_FIRST], headers[schema.HEADER_LAST]) == batch.time_range()
    assert story([event for event in decode(second.body).events() if event.uid]) == [
        "published",
        "routed",
        "enqueued q",
    ]


def test_enough_rows_are_a_batch_at_the_end_of_the_turn(traced: TracedBroker, channel: ClientChannel) -> None:
    messages = BATCH_ROWS // 3 + 1
    for _ in range(messages):
        channel.publish(b"", "q")
    assert traced.batches() == []
    traced.broker.end_turn()
    assert [decode(data).count for data in traced.batches()] == [3 * messages + 1]  # with the declaration of q


def test_uids_grow_over_a_restart_also_if_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    later = 1_800_000_000_000
    storage = MemoryStorage()
    traced = TracedBroker([ALL], storage)
    traced.broker.turn.now_ms = later
    traced.client().channel().publish(b"", "q")
    (before, _) = traced.events()
    again = TracedBroker([ALL], storage)
    again.client().channel().publish(b"", "q")
    after = again.events()[-1]
    assert after.uid > before.uid
    assert after.uid >> 22 > later - 1_577_836_800_000


# -- losing it -------------------------------------------------------------------------------------------------------


def test_a_stream_that_was_deleted_is_made_anew(traced: TracedBroker, channel: ClientChannel) -> None:
    channel.publish(b"", "q")
    traced.make_batch()
    vhost = traced.broker.vhosts["/"]
    vhost.remove_queue(vhost.queues[schema.STREAM_NAME])
    channel.publish(b"", "q")
    assert story(traced.events()) == ["published", "routed", "enqueued q"]
    assert traced.tracing.state()["dropped"] == 0


def test_events_are_dropped_and_counted_where_the_name_is_taken(
    traced: TracedBroker, channel: ClientChannel, caplog: pytest.LogCaptureFixture
) -> None:
    # of an older version
    restore_queue(channel.vhost, {"name": schema.STREAM_NAME, "auto_delete": False, "arguments": {}})
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            channel.publish(b"", "q")
            traced.make_batch()
    assert channel.vhost.queues["q"].message_count() == 5
    state = traced.tracing.state()
    assert (state["kept"], state["dropped"]) == (0, 16)
    assert state["failure"] == "warren.events is a queue, not a stream"
    told = [record for record in caplog.records if record.name.startswith("warrenmq")]
    assert len(told) == 1, "once a minute is enough"
    channel.delete(channel.vhost.queues[schema.STREAM_NAME])
    channel.publish(b"", "q")
    traced.make_batch()
    assert traced.tracing.state()["failure"] is None
    assert traced.tracing.state()["kept"] > 0


def test_events_that_cannot_be_encoded_are_dropped(
    traced: TracedBroker, channel: ClientChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rows: object, writer: object) -> bytes:
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(log_module, "encode", fail)
        channel.publish(b"", "q")
        traced.make_batch()
    assert traced.tracing.state()["failure"] == "events cannot be encoded: no memory"
    channel.publish(b"", "q")
    assert story(traced.events()) == ["published", "routed", "enqueued q"]


def test_where_the_disk_is_short_events_are_not_written(traced: TracedBroker, channel: ClientChannel) -> None:
    is_short = [True]
    traced.tracing.log.is_disk_short = lambda: is_short[0]
    channel.publish(b"", "q")
    traced.make_batch()
    assert traced.tracing.state()["failure"] == "the disk is almost full"
    is_short[0] = False
    channel.publish(b"", "q")
    assert len(traced.events()) == 3
    assert traced.tracing.state()["dropped"] == 4


# -- with a loop -----------------------------------------------------------------------------------------------------


class Slow:
    """Holds the thread that encodes until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import threading

        self.go_on = threading.Event()
        real = log_module.encode

        def encode(rows: Any, writer: Any) -> bytes:
            assert self.go_on.wait(30)
            return real(rows)

        monkeypatch.setattr(log_module, "encode", encode)


async def start(traced: TracedBroker, overloaded: list[bool] | None = None) -> EventLog:
    told: list[bool] = [] if overloaded is None else overloaded
    await traced.tracing.start(asyncio.get_running_loop(), traced.broker.end_turn, told.append, lambda: False)
    return traced.tracing.log


def test_rows_wait_for_company_but_not_for_long(traced: TracedBroker, channel: ClientChannel) -> None:
    async def scenario() -> None:
        log = await start(traced)
        channel.publish(b"", "q")
        traced.broker.end_turn()
        assert traced.batches() == []
        batch: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        log.on_batch.append(lambda offset, data, note: batch.set_result(decode(data).count))
        assert await asyncio.wait_for(batch, 30) == 4
        assert len(traced.batches()) == 1
        await traced.tracing.stop()

    asyncio.run(scenario())


def test_publishers_wait_while_events_come_faster_than_they_are_written(
    traced: TracedBroker, channel: ClientChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    monkeypatch.setattr(log_module, "MAX_WAITING_BYTES", 100_000)
    told: list[bool] = []

    async def scenario() -> None:
        log = await start(traced, told)
        while not told:
            channel.publish_all("a" * 100, "q")
            traced.broker.end_turn()
            traced.tracing.recorder.hand_over()
        assert told == [True]
        assert log.waiting_bytes > 100_000
        slow.go_on.set()
        await log.flush()
        assert told == [True, False]
        assert (log.waiting_bytes, log.waiting_rows, log.dropped) == (0, 0, 0)
        await traced.tracing.stop()

    asyncio.run(scenario())
    published = channel.vhost.queues["q"].message_count()
    assert len([event for event in traced.events() if event.kind == schema.PUBLISHED]) == published


def test_a_reader_reads_what_is_there(traced: TracedBroker, channel: ClientChannel) -> None:
    async def scenario() -> None:
        log = await start(traced)
        assert (log.first_offset, log.next_offset, log.identity) == (0, 0, None)
        assert await log.read(0) == {}
        for letter in "abc":
            channel.publish_all(letter, "q")
            await log.flush()
        assert await read_everything(log) == [0, 1, 2]
        assert list(await log.read(2)) == [2]
        identity = log.identity
        channel.vhost.remove_queue(channel.vhost.queues[schema.STREAM_NAME])
        assert await log.read(0) == {}
        channel.publish_all("d", "q")
        await log.flush()
        assert log.identity is not identity
        await traced.tracing.stop()

    asyncio.run(scenario())


async def read_everything(log: EventLog) -> list[int]:
    found: list[int] = []
    while batches := await log.read(found[-1] + 1 if found else 0):
        found += batches
    return found


# -- durable causes --------------------------------------------------------------------------------------------------


class TracedLife(Life):
    """A broker on a simulated disk whose events are kept. Batches are made when the test says so."""

    traced: TracedBroker

    def make_broker(self) -> Any:
        self.traced = TracedBroker([ALL], self.storage)
        return self.traced.broker

    def begin(self) -> None:
        """What a start does with rows of before."""
        tracing = self.traced.tracing
        tracing.batch_recovered()

    def events(self) -> list[Event]:
        self.traced.tracing.recorder.hand_over()
        self.settle()
        stream = self.broker.vhosts["/"].queues.get(schema.STREAM_NAME)
        data = self._read_stream(stream) if stream is not None else []  # type: ignore[arg-type]
        return [event for each in data for event in decode(each).events() if event.uid]


def a_disk() -> RecordingFiles:
    files = RecordingFiles()
    files.make_dirs(ROOT)
    files.sync_dir("/")
    return files


def durable_queue(life: Life) -> None:
    life.publisher.declare("q", durable=True)


def test_rows_of_a_durable_turn_are_there_after_a_kill() -> None:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    life.publisher.publish(b"kept", "q", delivery_mode=PERSISTENT, message_id="kept")
    life.settle()
    life.publisher.publish(b"lost", "q", delivery_mode=PERSISTENT, message_id="lost")  # its epoch is never written
    life = TracedLife(RecordingFiles(files.disk.after_kill()), 1)
    life.begin()
    events = life.events()
    assert story(events) == ["published", "routed", "enqueued q"]
    assert {event.message_id for event in events} == {"kept"}
    assert life.queue("q").message_count() == 1


def test_rows_added_before_their_epoch_is_closed_are_written_with_it() -> None:
    """The thread has them, and no batch is made of them before the kill."""
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    life.publisher.publish(b"first", "q", delivery_mode=PERSISTENT, message_id="first")
    life.end_turn()  # the committer has an epoch now: what comes next waits in the open one
    life.publisher.publish(b"second", "q", delivery_mode=PERSISTENT, message_id="second")
    life.end_turn()
    life.traced.tracing.log.take = lambda rows, first, up_to: None  # type: ignore[method-assign]
    life.traced.tracing.recorder.hand_over()
    life.settle()
    life = TracedLife(RecordingFiles(files.disk.after_kill()), 1)
    life.begin()
    published = [event.message_id for event in life.events() if event.kind == schema.PUBLISHED]
    assert published == ["first", "second"]


def test_a_message_is_traced_through_a_restart() -> None:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    life.publisher.publish(b"x", "q", delivery_mode=PERSISTENT, message_id="m", correlation_id="c")
    life.settle()
    life.traced.make_batch()
    life.settle()
    life = TracedLife(RecordingFiles(files.disk.after_kill()), 1)
    life.begin()
    assert life.get("q") is not None
    life.channel.ack(1)
    life.channel.core.commit()
    events = life.events()
    assert story(events) == ["published", "routed", "enqueued q", "delivered q", "acked q"]
    assert len({(event.uid, event.message_id, event.correlation_id, event.publish_time) for event in events}) == 1
    assert len({event.enqueue_time for event in events[2:]}) == 1


def test_what_is_in_a_batch_is_not_there_twice() -> None:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    for number in range(5):
        life.publisher.publish(b"x", "q", delivery_mode=PERSISTENT, message_id=str(number))
        life.settle()
        if number == 2:
            life.traced.make_batch()
            life.settle()
    for restart in range(1, 3):
        life = TracedLife(RecordingFiles(files.disk.after_kill()), restart)
        life.begin()
        events = life.events()
        assert [event.message_id for event in events if event.kind == schema.PUBLISHED] == list("01234")
        life.settle()


def test_what_the_log_forgets_is_said_again() -> None:
    """The log is trimmed while rows wait: they are in the epochs that stay."""
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    life.publisher.publish(b"x", "q", delivery_mode=PERSISTENT, message_id="early")
    life.settle()
    for number in range(60):
        life.publisher.publish(bytes(300), "q", delivery_mode=PERSISTENT, message_id=str(number))
        life.settle()
    assert life.storage.checkpoint.count > 0, "nothing was trimmed"
    life = TracedLife(RecordingFiles(files.disk.after_kill()), 1)
    life.begin()
    published = [event.message_id for event in life.events() if event.kind == schema.PUBLISHED]
    assert published == ["early", *map(str, range(60))]


@pytest.mark.parametrize("seed", range(effort(8)))
def test_power_loss_at_any_moment_leaves_each_durable_message_its_events(seed: int) -> None:
    """Whatever is confirmed has its events once; what is not may have them or not, never twice."""
    choice = random.Random(seed)
    history = History.begin(a_disk().disk)
    life = TracedLife(history.files)
    durable_queue(life)
    life.settle()
    first = len(history.files.operations)
    waiting: dict[str, int] = {}

    def told(epoch: int) -> None:
        for name in [name for name, said in waiting.items() if said <= epoch]:
            del waiting[name]
            history.record(name)

    life.on_durable = told
    for number in range(40):
        life.publisher.publish(bytes(choice.randrange(200)), "q", delivery_mode=PERSISTENT, message_id=str(number))
        waiting[str(number)] = life.epoch
        step(life, choice)
    for crash in history.crashes(choice, 12, 1, first):
        after = TracedLife(RecordingFiles(crash.disk), 1)
        after.begin()
        published = [event.message_id for event in after.events() if event.kind == schema.PUBLISHED]
        assert len(published) == len(set(published)), f"twice: {published}"
        assert set(crash.facts) <= set(published), f"durable, but without events: {set(crash.facts) - set(published)}"
        queued = list(message_ids(after))
        assert set(queued) <= set(published), f"there, but without events: {set(queued) - set(published)}"


def step(life: TracedLife, choice: random.Random) -> None:
    if choice.random() < 0.6:
        life.end_turn()
    if choice.random() < 0.2:
        life.traced.make_batch()
    for _ in range(choice.randrange(4)):
        if choice.random() < 0.7:
            life.commit_one(choice.random() < 0.8)
        else:
            life.page_one()
    if choice.random() < 0.1:
        life.settle()


def message_ids(life: Life) -> Iterator[str]:
    while (got := life.get("q")) is not None:
        found = properties.message_id(got.message.header)
        assert found is not None
        yield found


def test_deleted_files_of_the_event_log_stop_no_client() -> None:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    for number in range(30):
        life.publisher.publish(bytes(300), "q", delivery_mode=PERSISTENT, message_id=str(number))
        life.traced.make_batch()
        life.settle()
        if number % 10 == 5:
            folder = life.broker.vhosts["/"].queues[schema.STREAM_NAME].store.folder  # type: ignore[union-attr]
            life.storage.pager._close_handle()
            for name in files.list(folder):
                files.remove(f"{folder}/{name}")
    assert life.failure is None
    assert life.queue("q").message_count() == 30
    life.stop()
    assert life.failure is None
    assert TINY.log_limit < 30 * 1000
