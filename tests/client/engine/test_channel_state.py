"""The half of a channel that any thread may use: numbers, tags, and what happens without a link."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.engine.wire import Server
from warrenmq.client.engine.channel_state import ChannelState, DeliveryBuffer, SharedConnection, as_bytes
from warrenmq.client.errors import (
    ChannelClosed,
    CloseReason,
    ConnectionClosed,
    ConnectionLost,
    Misuse,
    PublishLost,
    Unroutable,
)
from warrenmq.protocol import spec
from warrenmq.protocol.properties import BasicProperties, content_header

NOBODY: Any = None
LOST = CloseReason("network", 0, "cut", is_final=False)


NAMES = BasicProperties(message_id="m-1")


class Consumer:
    """As much of a consumer as a state asks for."""

    def __init__(self, buffer: DeliveryBuffer | None) -> None:
        self.buffer = buffer


class Connection:
    """A shared, one state, and a link to lose."""

    def __init__(self, resends_unconfirmed: bool = False, output_limit: int = 1 << 20) -> None:
        self.wakes = 0
        self.shared = SharedConnection(output_limit, resends_unconfirmed, self._schedule_flush, None)
        self.state = ChannelState(self.shared, 1, NOBODY, None)
        self.shared.channel_states[1] = self.state
        self.server = self.connect()

    def connect(self) -> Server:
        self.server = Server(self.shared)
        self.server.open(self.state)
        return self.server

    def lose(self) -> None:
        self.server.protocol.receive_eof()

    def confirm(self) -> None:
        self.state.is_confirming = True

    def consume(self) -> DeliveryBuffer:
        self.state.consumers["c"] = Consumer(self.state.buffer)  # type: ignore[assignment]
        return self.state.buffer

    def tags(self) -> list[int]:
        items: list[Any] = self.state.buffer.items
        self.state.buffer.items = []
        self.server.listener.filled_buffers = []
        return [each.delivery_tag for each in items]

    def _schedule_flush(self) -> None:
        self.wakes += 1


# -- publishing


def test_publish_wakes_the_loop_once_until_it_has_written() -> None:
    connection = Connection()
    for body in (b"1", b"2"):
        connection.state.publish("", "key", body)
    assert connection.wakes == 1
    assert connection.server.said() == [b"1", b"2"]
    connection.shared.is_flush_scheduled = False
    connection.state.publish("", "key", b"3")
    assert connection.wakes == 2


def test_publishes_are_numbered_in_confirm_mode_only() -> None:
    connection = Connection()
    assert connection.state.next_publish_tag == 0
    assert connection.state.publish("", "key", b"x").tag == 0
    connection.confirm()
    assert connection.state.next_publish_tag == 1
    assert [connection.state.publish("", "key", b"x").tag for _ in range(3)] == [1, 2, 3]


def test_no_room_means_nothing_is_done() -> None:
    connection = Connection(output_limit=100)
    connection.confirm()
    assert connection.state.publish("", "key", b"x" * 200) is not None
    assert connection.state.publish("", "key", b"y") is None
    assert connection.state.next_publish_tag == 2
    assert connection.server.said() == [b"x" * 200]
    assert connection.state.publish("", "key", b"y") is not None


def test_misuse_takes_no_publish_number() -> None:
    connection = Connection()
    connection.confirm()
    with pytest.raises(Misuse):
        connection.state.publish("", "k" * 256, b"x")
    with pytest.raises(Misuse):
        connection.state.publish("", "key", 5)  # type: ignore[arg-type]
    assert connection.state.next_publish_tag == 1
    assert not connection.shared.lock.locked()


@pytest.mark.parametrize("body", [b"\xc3\xa9", "\u00e9", bytearray(b"\xc3\xa9"), memoryview(b"\xc3\xa9")])
def test_bodies_of_every_kind_become_bytes(body: Any) -> None:
    assert as_bytes(body) == b"\xc3\xa9"


def test_direct_way_is_taken_by_who_has_nothing_else_outstanding() -> None:
    connection, written = Connection(), []
    connection.confirm()

    def write() -> bool:
        written.append(connection.server.said())
        return True

    connection.shared.write_directly = write
    connection.state.publish("", "key", b"1")
    connection.state.publish("", "key", b"2")
    assert written == [[b"1"]]
    assert connection.wakes == 1
    connection.shared.is_flush_scheduled = False
    connection.server.said()
    connection.server.say(1, spec.BasicAck(2, True))
    connection.state.publish("", "key", b"3")
    assert written == [[b"1"], [b"3"]]


# -- without a link


def test_publish_without_a_link_is_refused() -> None:
    connection = Connection()
    connection.lose()
    with pytest.raises(ConnectionLost):
        connection.state.publish("", "key", b"x")


def test_publish_without_a_link_is_kept_where_wanted_and_bounded() -> None:
    connection = Connection(resends_unconfirmed=True, output_limit=1000)
    connection.lose()
    kept = 0
    while connection.state.publish("", "key", b"%d" % kept) is not None:
        kept += 1
        assert kept < 100
    server = connection.connect()
    assert server.said() == [b"%d" % number for number in range(kept)]


def test_unconfirmed_publishes_are_sent_again_in_order_with_their_tags() -> None:
    connection = Connection(resends_unconfirmed=True)
    connection.confirm()
    before = [connection.state.publish("", "key", b"%d" % number) for number in range(3)]
    connection.server.say(1, spec.BasicAck(1, False))
    connection.lose()
    between = connection.state.publish("", "key", b"3")
    server = connection.connect()
    assert server.said() == [b"1", b"2", b"3"]
    after = connection.state.publish("", "key", b"4")
    assert [each.tag for each in (*before, between, after)] == [1, 2, 3, 4, 5]
    server.say(1, spec.BasicAck(3, True))
    assert between.done()
    assert not after.done()


def test_loss_fails_what_is_not_kept() -> None:
    connection = Connection()
    connection.confirm()
    confirmation = connection.state.publish("", "key", b"x")
    connection.lose()
    connection.state.fail_unconfirmed(PublishLost("lost"), [])
    assert isinstance(confirmation.exception(), PublishLost)
    assert connection.state.next_publish_tag == 2


def test_publish_in_a_transaction_is_never_kept() -> None:
    connection = Connection(resends_unconfirmed=True)
    connection.state.is_transactional = True
    connection.lose()
    assert connection.state.lost_transaction
    with pytest.raises(ConnectionLost):
        connection.state.publish("", "key", b"x")


def test_closed_channel_and_closed_connection_raise() -> None:
    connection = Connection()
    connection.state.close(CloseReason("server", 404, "NOT_FOUND"))
    for call in (lambda: connection.state.publish("", "key", b"x"), lambda: connection.state.ack(1)):
        with pytest.raises(ChannelClosed):
            call()
    other = Connection()
    other.lose()
    other.shared.final_reason = CloseReason("client", 200, "Goodbye")
    for call in (lambda: other.state.publish("", "key", b"x"), lambda: other.state.ack(1)):
        with pytest.raises(ConnectionClosed):
            call()


def test_connection_of_another_process_is_misuse() -> None:
    connection = Connection()
    connection.shared.lock.acquire()  # by a thread that this process does not have
    connection.shared.abandon()
    for call in (lambda: connection.state.publish("", "key", b"x"), lambda: connection.state.ack(1)):
        with pytest.raises(Misuse):
            call()


# -- deliveries and their tags


def test_tags_are_never_seen_twice() -> None:
    connection = Connection()
    connection.consume()
    for tag in (1, 2, 3):
        connection.server.deliver(connection.state, tag)
    assert connection.tags() == [1, 2, 3]
    connection.lose()
    connection.connect()
    for tag in (1, 2):
        connection.server.deliver(connection.state, tag)
    assert connection.tags() == [4, 5]


def test_tag_of_an_earlier_link_is_not_sent() -> None:
    connection = Connection()
    connection.consume()
    connection.server.deliver(connection.state, 1)
    connection.lose()
    state = connection.state
    assert [state.ack(1), state.nack(1), state.reject(1), state.ack(1, True)] == [False] * 4
    server = connection.connect()
    server.deliver(state, 1)
    assert state.is_stale(1)
    assert not state.is_stale(2)
    assert [state.ack(1), state.nack(1), state.reject(1), state.ack(1, True)] == [False] * 4
    assert server.said() == []
    assert state.ack(2)
    assert server.said() == [(1, 1, False)]


def test_zero_and_multiple_mean_all_of_this_life() -> None:
    connection = Connection()
    connection.consume()
    connection.server.deliver(connection.state, 1)
    connection.lose()
    server = connection.connect()
    server.deliver(connection.state, 1)
    assert connection.state.ack(0) is False
    assert connection.state.ack(0, True) is True
    assert server.said() == [(1, 0, True)]


def test_nack_and_reject_reach_the_wire() -> None:
    connection = Connection()
    connection.state.nack(3, True, False)
    connection.state.reject(4)
    nack, reject = connection.server.said()
    assert (nack.delivery_tag, nack.multiple, nack.requeue) == (3, True, False)
    assert (reject.delivery_tag, reject.requeue) == (4, True)


def test_deliveries_without_consumer_are_dropped_or_requeued() -> None:
    connection = Connection()
    connection.state.consumers["c"] = Consumer(None)  # type: ignore[assignment]
    connection.server.deliver(connection.state, 1, consumer="unknown")
    connection.server.deliver(connection.state, 2)
    assert connection.server.listener.orphans == [(connection.state, 2)]
    assert connection.server.listener.filled_buffers == []


def test_default_consumer_receives_deliveries_of_unknown_consumers() -> None:
    connection = Connection()
    connection.state.default_consumer = Consumer(connection.state.buffer)  # type: ignore[assignment]
    connection.server.deliver(connection.state, 1, consumer="unknown")
    assert connection.tags() == [1]


def test_one_inbox_is_scheduled_once_per_read() -> None:
    connection = Connection()
    buffer = connection.consume()
    for tag in (1, 2):
        connection.server.deliver(connection.state, tag)
    assert connection.server.listener.filled_buffers == [buffer]


@pytest.mark.parametrize("tag", [-1, 1 << 64, "1", None, 1.5])
def test_what_is_no_tag_is_misuse(tag: Any) -> None:
    with pytest.raises(Misuse):
        Connection().state.tag_of(tag)


# -- what takes effect while the lock is held


def test_return_before_the_ack_fails_the_publish() -> None:
    connection = Connection()
    connection.confirm()
    confirmation = connection.state.publish("", "key", b"x", None, True)
    method = spec.BasicReturn(312, "NO_ROUTE", "", "key")
    connection.server.say_content(1, method, b"x", content_header(1, BasicProperties()))
    connection.server.say(1, spec.BasicAck(1, False))
    assert isinstance(confirmation.exception(), Unroutable)
    assert len(connection.server.listener.returns) == 1


def test_channel_closed_by_the_server_takes_no_more() -> None:
    connection = Connection()
    connection.server.say(1, spec.ChannelClose(404, "NOT_FOUND - no exchange", 60, 40))
    with pytest.raises(ChannelClosed):
        connection.state.publish("", "key", b"x")


def test_channel_closed_while_it_is_restored_is_not_closed_for_good() -> None:
    connection = Connection()
    connection.state.is_restoring = True
    connection.server.say(1, spec.ChannelClose(404, "NOT_FOUND - no queue", 60, 20))
    assert connection.state.close_reason is None
    assert connection.state.protocol is None


def test_confirm_listeners_receive_client_tags() -> None:
    connection = Connection()
    connection.confirm()
    connection.state.has_confirm_listeners = True
    connection.state.publish("", "key", b"x")
    connection.lose()
    connection.state.fail_unconfirmed(PublishLost(str(LOST)), [])
    server = connection.connect()
    connection.state.publish("", "key", b"x")
    server.say(1, spec.BasicAck(1, False))
    assert server.listener.confirm_notifications == [(connection.state, 2, False, True)]


# -- notes


def test_note_names_the_delivery_by_its_tag_on_this_link() -> None:
    connection = Connection()
    connection.consume()
    connection.server.deliver(connection.state, 1)
    connection.lose()
    server = connection.connect()
    server.deliver(connection.state, 1)
    first, second = connection.tags()
    assert connection.state.note(second, b"about the second", None)
    assert server.said() == [b"about the second"]
    assert not connection.state.note(first, b"its link is lost", None)
    assert connection.state.note(first, b"its message has an id", NAMES)
    assert server.said() == [b"its message has an id"]


def test_note_on_a_delivery_that_a_multiple_ack_covers_needs_an_id() -> None:
    connection = Connection()
    connection.consume()
    for tag in (1, 2, 3):
        connection.server.deliver(connection.state, tag)
    connection.state.ack(2, multiple=True)
    connection.server.said()
    assert [connection.state.note(tag, b"note", None) for tag in (1, 2, 3)] == [False, False, True]
    connection.state.ack(0, multiple=True)
    assert not connection.state.note(3, b"note", None)


def test_note_is_not_sent_again_and_its_confirm_is_ignored() -> None:
    connection = Connection(resends_unconfirmed=True)
    connection.confirm()
    first = connection.state.publish("", "q", b"first")
    assert connection.state.note(1, b"note", None)
    second = connection.state.publish("", "q", b"second")
    connection.lose()
    server = connection.connect()
    server.said()
    server.say(1, spec.BasicAck(2, True))
    assert first is not None
    assert second is not None
    assert first.done()
    assert second.done()


def test_note_while_the_connection_is_lost_is_not_sent() -> None:
    connection = Connection()
    connection.lose()
    assert not connection.state.note(1, b"note", NAMES)


def test_note_between_two_transactions_is_misuse() -> None:
    connection = Connection()
    connection.state.set_outside_transaction(True)
    with pytest.raises(Misuse):
        connection.state.note(1, b"note", NAMES)
