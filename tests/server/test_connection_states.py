"""The states of a connection: the table in the header of connection.py, its transitions, and random lives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dialogue import Dialogue
from tests.support.socketless import InternalErrors, SocketlessServer
from tests.support.wire_format import METHOD, PROTOCOL_HEADER, pack_frame, pack_method
from warrenmq.server import connection as module
from warrenmq.server.connection import (
    CLOSE_TIMEOUT,
    PAUSES,
    TRANSITIONS,
    UNREAD_OUTPUT_LIMIT,
    AmqpConnection,
    ConnectionState,
    ReadPause,
)
from warrenmq.server.flow import DISK

AWAITING_HEADER, HANDSHAKE, OPEN, CLOSING, DISCARDING, FLUSHING, ABORTED, CLOSED = ConnectionState


class SlowLine(Dialogue):
    """A client that reads nothing while `unread` bytes wait for it, and which can close its end."""

    unread = 0

    def __init__(self, server: SocketlessServer) -> None:
        super().__init__(server)
        self.line.get_write_buffer_size = lambda: self.unread  # type: ignore[method-assign]
        self.connection = self.line.connection

    def stop_reading(self) -> None:
        self.unread = UNREAD_OUTPUT_LIMIT + 1
        self.connection.pause_writing()

    def read_again(self) -> None:
        self.unread = 0
        self.connection.resume_writing()

    def pass_every_limit(self) -> None:
        """Twice, as the first check notices earlier input, a sign of life."""
        for _ in range(2):
            self.line.pass_time(CLOSE_TIMEOUT + 60)

    def end_input(self) -> None:
        if self.line.is_reading and not self.line.is_closed:
            assert self.connection.eof_received() is False
            self.line.close()

    def wait_for_disk(self) -> None:
        """Hold a reply, as queue.declare does until it is durable."""
        if self.connection.session.core is not None and not self.connection.session.is_closed:
            self.connection.session.hold_reply()

    def reply(self) -> None:
        self.connection.resume_after(lambda: None)


def pack(method: str, channel: int = 0, **arguments: object) -> bytes:
    return pack_frame(METHOD, channel, pack_method(method, **arguments))


def start_ok(password: str) -> bytes:
    return pack(
        "connection.start-ok",
        client_properties={"capabilities": {"connection.blocked": True}},
        mechanism="PLAIN",
        response=f"\0guest\0{password}",
        locale="en_US",
    )


TUNE_OK = pack("connection.tune-ok", channel_max=2047, frame_max=131072, heartbeat=10)
CONNECTION_OPEN = pack("connection.open", virtual_host="/")
BROKEN = b"\xff" * 20
CLOSE = pack("connection.close", reply_code=200, reply_text="")
EVENTS: dict[str, Callable[[SlowLine], object]] = {
    "part of a header": lambda client: client.line.send(PROTOCOL_HEADER[:4], ends_turn=False),
    "wrong header": lambda client: client.line.send(b"GET / HTTP/1.1", ends_turn=False),
    "header": lambda client: client.line.send(PROTOCOL_HEADER, ends_turn=False),
    "log in": lambda client: client.line.send(start_ok("guest") + TUNE_OK, ends_turn=False),
    "open": lambda client: client.line.send(CONNECTION_OPEN + pack("channel.open", 1), ends_turn=False),
    "qos": lambda client: client.line.send(pack("basic.qos", 1, prefetch_count=1), ends_turn=False),
    "publish": lambda client: client.publish(b"x", "nowhere"),
    "mistake": lambda client: client.line.send(pack("basic.qos", 9, prefetch_count=1), ends_turn=False),
    "broken frames": lambda client: client.line.send(BROKEN, ends_turn=False),
    "close": lambda client: client.line.send(CLOSE, ends_turn=False),
    "close-ok": lambda client: client.line.send(pack("connection.close-ok"), ends_turn=False),
    "eof": SlowLine.end_input,
    "lost": lambda client: client.line.hang_up(),
    "shutdown": lambda client: client.connection.shut_down(),
    "abort": lambda client: client.connection.abort(),
    "timeout": SlowLine.pass_every_limit,
    "alarm": lambda client: client.server.alarms.set(DISK, True),
    "all clear": lambda client: client.server.alarms.set(DISK, False),
    "stop reading": SlowLine.stop_reading,
    "read again": SlowLine.read_again,
    "hold": SlowLine.wait_for_disk,
    "reply": SlowLine.reply,
    "turn": lambda client: client.server.loop.run(),
}
PATHS: dict[ConnectionState, tuple[str, ...]] = {
    AWAITING_HEADER: (),
    HANDSHAKE: ("header", "log in"),
    OPEN: ("header", "log in", "open"),
    CLOSING: ("header", "log in", "open", "mistake"),
    DISCARDING: ("header", "log in", "open", "broken frames"),
    FLUSHING: ("header", "log in", "open", "mistake", "close-ok"),
    ABORTED: ("header", "log in", "open", "abort"),
    CLOSED: ("header", "log in", "open", "lost"),
}


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


def client_in(server: SocketlessServer, state: ConnectionState) -> SlowLine:
    client = SlowLine(server)
    for event in PATHS[state]:
        EVENTS[event](client)
    assert client.connection.state is state
    return client


def table_in_header() -> Iterator[tuple[ConnectionState, set[str], set[str]]]:
    """Each row of the table in the module's docstring."""
    rows = re.findall(r"^    ([A-Z_]+) {2,}(.*?) {2,}(.*)$", module.__doc__ or "", re.MULTILINE)
    for name, states, pauses in rows:
        yield ConnectionState[name], set(states.split()) - {"-"}, set(pauses.split()) - {"-"}


def test_the_table_in_the_header_is_the_one_in_the_code() -> None:
    table = list(table_in_header())
    assert [state for state, _, _ in table] == list(ConnectionState)
    for state, states, pauses in table:
        assert {each.name for each in TRANSITIONS[state]} == states
        assert {pause.name for pause in ReadPause if pause and pause & PAUSES[state]} == pauses


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (AWAITING_HEADER, "part of a header", AWAITING_HEADER),
        (AWAITING_HEADER, "wrong header", FLUSHING),
        (AWAITING_HEADER, "header", HANDSHAKE),
        (AWAITING_HEADER, "eof", FLUSHING),
        (AWAITING_HEADER, "shutdown", ABORTED),
        (AWAITING_HEADER, "timeout", CLOSED),
        (HANDSHAKE, "open", OPEN),
        (HANDSHAKE, "mistake", CLOSING),
        (HANDSHAKE, "close", CLOSING),
        (HANDSHAKE, "eof", FLUSHING),
        (HANDSHAKE, "shutdown", ABORTED),
        (HANDSHAKE, "timeout", CLOSED),
        (OPEN, "qos", OPEN),
        (OPEN, "mistake", CLOSING),
        (OPEN, "close", CLOSING),
        (OPEN, "shutdown", CLOSING),
        (OPEN, "broken frames", DISCARDING),
        (OPEN, "eof", FLUSHING),
        (OPEN, "timeout", CLOSED),
        (CLOSING, "qos", CLOSING),
        (CLOSING, "close", CLOSING),
        (CLOSING, "shutdown", CLOSING),
        (CLOSING, "close-ok", FLUSHING),
        (CLOSING, "eof", FLUSHING),
        (CLOSING, "broken frames", ABORTED),
        (CLOSING, "timeout", CLOSED),
        (DISCARDING, "close-ok", DISCARDING),
        (DISCARDING, "eof", FLUSHING),
        (DISCARDING, "timeout", CLOSED),
        (FLUSHING, "abort", ABORTED),
        (FLUSHING, "shutdown", FLUSHING),
        (FLUSHING, "turn", CLOSED),
        (ABORTED, "shutdown", ABORTED),
        (ABORTED, "abort", ABORTED),
        (ABORTED, "turn", CLOSED),
        (CLOSED, "abort", CLOSED),
        (CLOSED, "timeout", CLOSED),
        *((state, "abort", ABORTED) for state in (AWAITING_HEADER, HANDSHAKE, OPEN, CLOSING, DISCARDING)),
        *((state, "lost", CLOSED) for state in (AWAITING_HEADER, HANDSHAKE, OPEN, CLOSING, DISCARDING)),
    ],
)
def test_event(server: SocketlessServer, state: ConnectionState, event: str, after: ConnectionState) -> None:
    client = client_in(server, state)
    with InternalErrors() as errors:
        EVENTS[event](client)
    assert client.connection.state is after
    assert errors.found == []


@pytest.mark.parametrize("state", ConnectionState)
def test_other_transitions_are_bugs(server: SocketlessServer, state: ConnectionState) -> None:
    for target in set(ConnectionState) - TRANSITIONS[state] - {state}:
        client = client_in(server, state)
        with pytest.raises(AssertionError, match=f"illegal transition from {state.name} to {target.name}"):
            client.connection._enter(target)
        assert client.connection.state is state


def test_reading_resumes_when_the_last_reason_to_pause_ends(server: SocketlessServer) -> None:
    client = client_in(server, OPEN)
    for event in ("hold", "alarm", "stop reading"):
        EVENTS[event](client)
    client.connection.block_publisher()
    client.connection._check_unread_output()
    for event in ("all clear", "reply", "read again"):
        assert not client.line.is_reading
        EVENTS[event](client)
    assert client.line.is_reading


def test_a_close_ends_the_pauses_that_would_hide_the_reply(server: SocketlessServer) -> None:
    client = client_in(server, OPEN)
    EVENTS["hold"](client)
    EVENTS["alarm"](client)
    client.connection.block_publisher()
    EVENTS["shutdown"](client)
    assert client.line.is_reading
    assert not server.alarms.blocked
    EVENTS["close-ok"](client)
    assert client.connection.state is FLUSHING


def test_what_follows_a_refused_login_is_ignored(server: SocketlessServer) -> None:
    client = SlowLine(server)
    EVENTS["header"](client)
    with InternalErrors() as errors:
        client.line.send(start_ok("wrong") + start_ok("guest") + TUNE_OK + CONNECTION_OPEN, ends_turn=False)
    assert client.connection.state is ABORTED
    assert errors.found == []


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ConnectionState), st.lists(st.sampled_from(sorted(EVENTS)), max_size=12))
def test_random_lives_follow_the_table(start: ConnectionState, events: list[str]) -> None:
    """Whatever happens in any order: no illegal transition, no pause that the state does not allow."""
    server = SocketlessServer()
    with InternalErrors() as errors:
        client = client_in(server, start)
        for event in events:
            EVENTS[event](client)
            check_invariants(server, client.connection)
        client.line.hang_up()
        client.line.pass_time(0)
    assert errors.found == []
    assert client.connection.state is CLOSED
    assert server.broker.connection_count == 0


def check_invariants(server: SocketlessServer, connection: AmqpConnection) -> None:
    pauses = connection._pauses
    assert pauses & PAUSES[connection.state] == pauses
    assert (connection in server.alarms.blocked) == bool(pauses & ReadPause.ALARM)
    if connection.state is OPEN:
        assert connection.session.reader.is_paused == bool(pauses & ReadPause.HELD_REPLY)
