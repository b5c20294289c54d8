"""The end of a turn: what arrived together is answered together, by one write per connection."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import Line, ManualLoop, SocketlessServer
from tests.support.wire_format import METHOD, pack_frame, pack_method, pack_publish
from warrenmq.core.broker import Broker
from warrenmq.core.ports import StreamStore
from warrenmq.server.clock import system_time_ms
from warrenmq.server.connection import READ_SIZE
from warrenmq.server.ticker import Ticker
from warrenmq.storage.memory_store import MemoryStorage


class CountingLine(Line):
    """Counts how often the server writes."""

    def __init__(self, server: SocketlessServer) -> None:
        self.writes = 0
        super().__init__(server)

    def write(self, data: bytes | memoryview) -> None:
        self.writes += 1
        super().write(data)

    def writelines(self, chunks: Iterable[bytes | memoryview]) -> None:
        self.writes += 1
        for chunk in chunks:
            super().write(chunk)


class CountingLoop(ManualLoop):
    """Counts how often something is to be called soon."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduled = 0

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.scheduled += 1
        super().call_soon(callback)


class Page:
    """Something to be flushed."""

    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture
def loop() -> CountingLoop:
    return CountingLoop()


@pytest.fixture
def ticker(loop: CountingLoop) -> Ticker:
    return Ticker(loop, Broker(MemoryStorage()), system_time_ms)  # type: ignore[arg-type]


def test_a_turn_is_scheduled_once_whatever_happens_in_it(loop: CountingLoop, ticker: Ticker) -> None:
    pages = [Page(), Page()]
    ticker.schedule()
    for page in pages:
        ticker.mark_dirty(page)
    ticker.schedule()
    assert loop.scheduled == 1
    loop.run()
    assert [page.flushed for page in pages] == [1, 1]
    loop.run()
    assert [page.flushed for page in pages] == [1, 1]
    ticker.mark_dirty(pages[0])
    assert loop.scheduled == 2


def test_a_turn_that_is_ended_early_leaves_nothing_for_its_scheduled_end(loop: CountingLoop, ticker: Ticker) -> None:
    page = Page()
    ticker.mark_dirty(page)
    ticker.end_turn_early()
    assert page.flushed == 1
    ticker.mark_dirty(page)
    assert loop.scheduled == 1
    loop.run()
    assert page.flushed == 2


def test_what_flushing_brings_about_belongs_to_the_next_turn(loop: CountingLoop, ticker: Ticker) -> None:
    class Restless(Page):
        def flush(self) -> None:
            super().flush()
            if self.flushed < 3:
                ticker.mark_dirty(self)

    page = Restless()
    ticker.mark_dirty(page)
    ticker.end_turn()
    assert page.flushed == 1
    loop.run()
    assert page.flushed == 3


def test_the_alarms_are_judged_after_the_turn(loop: CountingLoop, ticker: Ticker) -> None:
    page = Page()
    judged: list[int] = []
    ticker.after_turn = lambda: judged.append(page.flushed)
    ticker.mark_dirty(page)
    loop.run()
    assert judged == [1]


class Counted:
    """A clock that is a millisecond later each time it is read."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.readings


def test_a_turn_has_one_time_and_reads_the_clock_once(loop: CountingLoop) -> None:
    broker, clock = Broker(MemoryStorage()), Counted()
    ticker = Ticker(loop, broker, clock)  # type: ignore[arg-type]
    for turn in (1, 2, 3):
        for _ in range(5):
            ticker.schedule()
            ticker.mark_dirty(Page())
            assert broker.turn.now_ms == turn
        loop.run()
    assert clock.readings == 3


def test_work_that_no_socket_brought_is_a_turn_with_its_own_time(loop: CountingLoop) -> None:
    broker = Broker(MemoryStorage())
    Ticker(loop, broker, Counted())  # type: ignore[arg-type]
    for turn in (1, 2):
        broker.turn.begin()
        broker.turn.begin()
        assert (broker.turn.now_ms, loop.scheduled) == (turn, turn)
        loop.run()


def test_each_large_piece_has_its_own_time(loop: CountingLoop) -> None:
    broker = Broker(MemoryStorage())
    ticker = Ticker(loop, broker, Counted())  # type: ignore[arg-type]
    for piece in (1, 2, 3):
        ticker.begin_large_read()
        assert broker.turn.now_ms == piece
        ticker.end_turn_early()


def test_input_is_handled_at_the_time_it_came() -> None:
    """Not at that of the turn before: a stream tells when a message was appended."""
    server = SocketlessServer()
    line = Line(server)
    client = Dialogue(server, line).open()
    client.say("queue.declare", 1, queue="s", durable=True, arguments={"x-queue-type": "stream"})
    server.clock += 3600
    line.send(pack_publish(1, b"1", None, routing_key="s"))
    store = server.broker.vhosts["/"].queues["s"].store
    assert isinstance(store, StreamStore)
    assert store.last_append_ms() == server.now_ms()


def test_all_answers_of_a_turn_go_out_in_one_write() -> None:
    server = SocketlessServer()
    line = CountingLine(server)
    client = Dialogue(server, line).open()
    writes = line.writes
    frames = pack_frame(METHOD, 1, pack_method("confirm.select"))
    frames += pack_frame(METHOD, 1, pack_method("queue.declare", queue="q"))
    frames += pack_frame(METHOD, 1, pack_method("basic.consume", queue="q", consumer_tag="c", no_ack=True))
    frames += pack_publish(1, b"1", None, routing_key="q") * 50
    line.send(frames)
    assert line.writes == writes + 1
    heard = client.methods()
    assert [method.name for method in heard[:3]] == ["confirm.select-ok", "queue.declare-ok", "basic.consume-ok"]
    assert [method.name for method in heard[3:]] == ["basic.deliver"] * 50 + ["basic.ack"]
    assert (heard[-1]["delivery_tag"], heard[-1]["multiple"]) == (50, True)


def test_much_that_waits_to_be_read_is_answered_piece_by_piece() -> None:
    server = SocketlessServer()
    line = CountingLine(server)
    client = Dialogue(server, line).open()
    client.say("confirm.select", 1)
    client.say("queue.declare", 1, queue="q")
    client.methods()
    writes = line.writes
    publish = pack_publish(1, bytes(1000), None, routing_key="q")
    count = 3 * READ_SIZE // len(publish)
    line.send(publish * count, ends_turn=False)
    assert line.writes == writes + 2  # the third piece is not a whole one, and waits for the end of the turn
    acks = client.methods()  # which comes now
    assert line.writes == writes + 3
    assert [method.name for method in acks] == ["basic.ack"] * 3
    assert acks[-1]["delivery_tag"] == count


def test_a_frame_larger_than_a_piece_comes_whole() -> None:
    server = SocketlessServer()
    client = Dialogue(server).open()
    client.say("queue.declare", 1, queue="q")
    body = random.Random(1).randbytes(3 * READ_SIZE)
    for _ in range(2):
        client.line.send(pack_publish(1, body, None, routing_key="q"))
    queue = server.broker.vhosts["/"].queues["q"]
    assert [entry.message.body for entry in queue.backlog] == [body, body]


def test_an_idle_connection_is_not_written_to() -> None:
    server = SocketlessServer()
    idle = CountingLine(server)
    Dialogue(server, idle).open()
    writes = idle.writes
    busy = Dialogue(server).open()
    for _ in range(5):
        busy.say("basic.qos", 1, prefetch_count=1)
    assert idle.writes == writes


def test_what_is_written_is_counted() -> None:
    server = SocketlessServer()
    client = Dialogue(server).open()
    before = server.broker.stats.bytes_in, server.broker.stats.bytes_out
    question = pack_frame(METHOD, 1, pack_method("basic.qos", prefetch_count=1))
    client.line.send(question)
    answer = client.line.receive()
    after = server.broker.stats.bytes_in, server.broker.stats.bytes_out
    assert (after[0] - before[0], after[1] - before[1]) == (len(question), len(answer))
