"""Streams: what may be declared, where readers begin, what acks do, and the words of each refusal."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, Step, call, declare_queue, label_of
from tests.conformance.conftest import Connect, Namer
from tests.support.waiting import let_time_pass
from tests.support.wire import Refusal, WireChannel
from tests.support.wire_format import Content, Tagged

STREAM = {"x-queue-type": "stream"}
NAMED = "queue '{queue}' in vhost '/'"


def declare(queue: str = "{queue}", arguments: dict[str, Any] | None = None, **flags: Any) -> Step:
    return declare_queue(queue, arguments={**STREAM, **(arguments or {})}, **{"durable": True, **flags})


def invalid(argument: str, value: Any, detail: str) -> RefusedCase:
    text = f"PRECONDITION_FAILED - invalid arg '{argument}' for {NAMED}: {detail}"
    return RefusedCase(f"{argument} {value!r}", declare(arguments={argument: value}), 406, text)


def foreign(argument: str, value: Any) -> RefusedCase:
    """An argument that only other queues have."""
    text = f"PRECONDITION_FAILED - invalid arg '{argument}' for {NAMED} of queue type rabbit_stream_queue"
    return RefusedCase(f"{argument} is for others", declare(arguments={argument: value}), 406, text)


def unlasting(label: str, fault: str, **flags: Any) -> RefusedCase:
    return RefusedCase(label, declare(**flags), 406, f"PRECONDITION_FAILED - invalid property '{fault}' for {NAMED}")


def changed(argument: str, before: Any, after: Any) -> RefusedCase:
    detail = f"received '{after}' but current is '{before}'"
    return RefusedCase(
        f"redeclare with another {argument}",
        declare(arguments={argument: after}),
        406,
        f"PRECONDITION_FAILED - inequivalent arg '{argument}' for {NAMED}: {detail}",
        given=(declare(arguments={argument: before}),),
    )


REFUSED_DECLARATIONS = [
    unlasting("not durable", "non-durable", durable=False),
    unlasting("exclusive", "exclusive-owner", exclusive=True),
    unlasting("auto-delete", "auto-delete", auto_delete=True),
    unlasting("all that at once", "auto-delete", auto_delete=True, exclusive=True, durable=False),
    RefusedCase(
        "without a name",
        declare(""),
        406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_stream_queue",
    ),
    invalid("x-max-age", "7", "invalid_max_age"),
    invalid("x-max-age", "7X", "invalid_max_age"),
    invalid("x-max-age", "7d", "invalid_max_age"),
    invalid("x-max-age", "1 h", "invalid_max_age"),
    invalid("x-max-age", "1.5h", "invalid_max_age"),
    invalid("x-max-age", "0s", "invalid_max_age"),
    invalid("x-max-age", 7, "{unacceptable_type,signedint}"),
    invalid("x-max-length-bytes", -1, "{value_negative,-1}"),
    invalid("x-max-length-bytes", "much", '"expected integer, got longstr"'),
    invalid("x-stream-max-segment-size-bytes", -1, "{value_negative,-1}"),
    invalid("x-stream-max-segment-size-bytes", "much", '"expected integer, got longstr"'),
    RefusedCase(
        "x-stream-max-segment-size-bytes too large",
        declare(arguments={"x-stream-max-segment-size-bytes": 3_000_000_001}),
        406,
        "PRECONDITION_FAILED - Exceeded max value for x-stream-max-segment-size-bytes",
    ),
    invalid("x-initial-cluster-size", 0, "{value_zero,0}"),
    invalid("x-initial-cluster-size", -1, "{value_negative,-1}"),
    invalid("x-initial-cluster-size", "many", '"expected integer, got longstr"'),
    invalid("x-queue-leader-locator", "anywhere", "invalid_queue_locator_arg"),
    invalid("x-queue-leader-locator", 3, "{unacceptable_type,signedint}"),
    foreign("x-expires", 1000),
    foreign("x-message-ttl", 1000),
    foreign("x-dead-letter-exchange", "x"),
    foreign("x-dead-letter-routing-key", "x"),
    foreign("x-dead-letter-strategy", "at-least-once"),
    foreign("x-delivery-limit", 3),
    foreign("x-max-length", 100),
    foreign("x-max-in-memory-length", 100),
    foreign("x-max-in-memory-bytes", 100),
    foreign("x-max-priority", 5),
    foreign("x-overflow", "drop-head"),
    foreign("x-queue-mode", "lazy"),
    foreign("x-queue-version", 2),
    foreign("x-queue-master-locator", "min-masters"),
    foreign("x-quorum-initial-group-size", 1),
    foreign("x-single-active-consumer", True),
    changed("x-max-age", "7D", "8D"),
    changed("x-max-age", "7D", "168h"),
    changed("x-max-length-bytes", 1000, 2000),
    changed("x-stream-max-segment-size-bytes", 1000, 2000),
    changed("x-initial-cluster-size", 1, 3),
    changed("x-queue-leader-locator", "random", "client-local"),
    RefusedCase(
        "redeclare as a classic queue",
        declare_queue(durable=True),
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for {NAMED}: "
        "received none but current is the value 'stream' of type 'longstr'",
        given=(declare(),),
    ),
    RefusedCase(
        "redeclare a classic queue as a stream",
        declare(),
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for {NAMED}: "
        "received the value 'stream' of type 'longstr' but current is none",
        given=(declare_queue(durable=True),),
    ),
]

ACCEPTED_DECLARATIONS = [
    AcceptedCase("plain", declare(), answer={"queue": "{queue}", "message_count": 0, "consumer_count": 0}),
    AcceptedCase("again", declare(), given=(declare(),)),
    *(
        AcceptedCase(f"{argument} {value!r}", declare(arguments={argument: value}))
        for argument, value in (
            *(("x-max-age", age) for age in ("1Y", "2M", "7D", "12h", "30m", "90s")),
            ("x-max-length-bytes", 1_000_000),
            ("x-max-length-bytes", 0),
            ("x-stream-max-segment-size-bytes", 1000),
            ("x-stream-max-segment-size-bytes", 3_000_000_000),
            ("x-initial-cluster-size", 1),
            ("x-initial-cluster-size", 3),
            ("x-queue-leader-locator", "client-local"),
            ("x-queue-leader-locator", "balanced"),
            ("x-queue-leader-locator", "random"),
            ("x-queue-leader-locator", "least-leaders"),
            ("x-stream-filter-size-bytes", 16),
            ("x-made-up", "anything"),
        )
    ),
]

QOS = call("basic.qos", prefetch_count=5)
GLOBAL_QOS = call("basic.qos", **{"prefetch_count": 5, "global": True})


def consume(**arguments: Any) -> Step:
    return call("basic.consume", queue="{queue}", **arguments)


REFUSED_READERS = [
    RefusedCase(
        "no prefetch",
        consume(),
        406,
        f"PRECONDITION_FAILED - consumer prefetch count is not set for '{NAMED}'",
        given=(declare(),),
    ),
    RefusedCase(
        "no prefetch but the channel's",
        consume(),
        406,
        f"PRECONDITION_FAILED - consumer prefetch count is not set for '{NAMED}'",
        given=(declare(), GLOBAL_QOS),
    ),
    RefusedCase(
        "no acks",
        consume(no_ack=True),
        540,
        f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {NAMED}",
        given=(declare(), QOS),
        scope="connection",
    ),
    RefusedCase(
        "no acks and no prefetch",
        consume(no_ack=True),
        406,
        f"PRECONDITION_FAILED - consumer prefetch count is not set for '{NAMED}'",
        given=(declare(),),
    ),
    RefusedCase(
        "a prefetch of the channel as well",
        consume(),
        540,
        f"NOT_IMPLEMENTED - {NAMED} does not support global qos",
        given=(declare(), QOS, GLOBAL_QOS),
        scope="connection",
    ),
    *(
        RefusedCase(
            f"{argument}",
            consume(arguments={argument: value}),
            406,
            f"PRECONDITION_FAILED - invalid arg '{argument}' for {NAMED} of queue type rabbit_stream_queue",
            given=(declare(), QOS),
        )
        for argument, value in (("x-priority", 5), ("x-cancel-on-ha-failover", True))
    ),
    *(
        RefusedCase(
            f"offset {offset!r}",
            consume(arguments={"x-stream-offset": offset}),
            406,
            f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {NAMED}: "
            f'{{invalid_stream_offset_arg,{{longstr,<<"{offset}">>}}}}',
            given=(declare(), QOS),
        )
        for offset in ("7", "0s", "7d")
    ),
    *(
        RefusedCase(
            f"an offset in a {queue_type} queue",
            consume(arguments={"x-stream-offset": "first"}),
            406,
            f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {NAMED} of queue type rabbit_{queue_type}_queue",
            given=(declare_queue(durable=True, arguments={"x-queue-type": queue_type}),),
        )
        for queue_type in ("classic", "quorum")
    ),
    RefusedCase(
        "basic.get",
        call("basic.get", queue="{queue}"),
        540,
        f"NOT_IMPLEMENTED - basic.get not supported by stream queues {NAMED}",
        given=(declare(),),
        scope="connection",
    ),
    RefusedCase(
        "queue.purge",
        call("queue.purge", queue="{queue}"),
        540,
        f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {NAMED}",
        given=(declare(),),
        scope="connection",
    ),
]


@pytest.mark.parametrize("case", REFUSED_DECLARATIONS, ids=label_of)
def test_refused_declaration(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", ACCEPTED_DECLARATIONS, ids=label_of)
def test_accepted_declaration(case: AcceptedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", REFUSED_READERS, ids=label_of)
def test_refused_reader(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream(channel: WireChannel, name: Namer) -> str:
    """A stream; its channel is in confirm mode."""
    queue = name("queue")
    channel.call("queue.declare", queue=queue, durable=True, arguments=STREAM)
    channel.call("confirm.select")
    return queue


def fill(channel: WireChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Publish and wait for each confirm: RabbitMQ hands out what was published together together."""
    for body in bodies:
        channel.publish(body, properties, routing_key=queue)
        channel.expect("basic.ack")


def read(connect: Connect, queue: str, offset: Any = "first", prefetch: int = 100, **more: Any) -> WireChannel:
    """Start a reader with a connection of its own."""
    channel = connect({"consumer_cancel_notify": True}).channel()
    channel.call("basic.qos", prefetch_count=prefetch)
    arguments = {} if offset is None else {"x-stream-offset": offset}
    channel.call("basic.consume", queue=queue, consumer_tag="reader", arguments=arguments, **more)
    return channel


def offset_of(message: Content) -> int:
    offset = message.properties["headers"]["x-stream-offset"]
    assert isinstance(offset, int)
    return offset


def test_messages_come_in_order_with_their_offsets(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a", b"b", b"c")
    reader = read(connect, stream)
    messages = [reader.content() for _ in range(3)]
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [offset_of(message) for message in messages] == [0, 1, 2]
    assert [message["delivery_tag"] for message in messages] == [1, 2, 3]
    assert [message["redelivered"] for message in messages] == [False] * 3
    assert {(message["exchange"], message["routing_key"]) for message in messages} == {("", stream)}


def test_the_offset_is_added_to_the_headers_and_the_rest_stays(
    channel: WireChannel, stream: str, connect: Connect
) -> None:
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "headers": {"a": 1},
        "delivery_mode": 1,
        "priority": 4,
        "correlation_id": "correlation",
        "message_id": "message",
        "timestamp": 1234,
        "type": "type",
    }
    fill(channel, stream, b"plain")
    fill(channel, stream, b"rich", **properties)
    fill(channel, stream, b"odd", headers={"x-stream-offset": "mine"})
    reader = read(connect, stream)
    plain, rich, odd = (reader.content().properties for _ in range(3))
    assert plain == {"headers": {"x-stream-offset": 0}}
    assert rich == {**properties, "headers": {"a": 1, "x-stream-offset": 1}}
    assert odd == {"headers": {"x-stream-offset": 2}}


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (None, []),
        ("next", []),
        ("first", [0, 1, 2, 3]),
        ("last", [3]),
        (0, [0, 1, 2, 3]),
        (2, [2, 3]),
        (-1, [0, 1, 2, 3]),
        (Tagged("l", 2), [2, 3]),
        (Tagged("s", 2), [2, 3]),
        (Tagged("T", 0), [0, 1, 2, 3]),
        (Tagged("T", 2**32), []),
        ("1h", [0, 1, 2, 3]),
        ("7D", [0, 1, 2, 3]),
        ("1Y", [0, 1, 2, 3]),
    ],
)
def test_a_reader_begins_where_it_asks_to(
    offset: Any, expected: list[int], channel: WireChannel, stream: str, connect: Connect
) -> None:
    fill(channel, stream, b"a", b"b", b"c", b"d")
    reader = read(connect, stream, offset)
    fill(channel, stream, b"e")
    assert [offset_of(reader.content()) for _ in range(len(expected) + 1)] == [*expected, 4]


@pytest.mark.parametrize("offset", [None, "next", "first", "last", 0, "1h", Tagged("T", 0), Tagged("T", 2**32)])
def test_a_reader_of_an_empty_stream_gets_the_first_message(
    offset: Any, channel: WireChannel, stream: str, connect: Connect
) -> None:
    reader = read(connect, stream, offset)
    fill(channel, stream, b"a")
    assert offset_of(reader.content()) == 0


def test_a_number_ahead_is_waited_for(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a")
    reader = read(connect, stream, 3)
    fill(channel, stream, b"b", b"c", b"d")
    assert offset_of(reader.content()) == 3


def test_a_time_leaves_out_what_is_older(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"old")
    let_time_pass(2.1)  # the brokers read their own clocks, in seconds
    moment = int(time.time())
    fill(channel, stream, b"new")
    assert read(connect, stream, Tagged("T", moment)).content().body == b"new"
    reader = read(connect, stream, "1s")
    fill(channel, stream, b"newer")  # where more than the second has passed meanwhile, this comes first
    assert reader.content().body in (b"new", b"newer")


def test_acks_give_credit_and_delete_nothing(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a", b"b", b"c", b"d")
    reader = read(connect, stream, prefetch=2)
    assert [offset_of(reader.content()) for _ in range(2)] == [0, 1]
    reader.barrier()  # nothing more came
    reader.send("basic.ack", delivery_tag=1)
    assert offset_of(reader.content()) == 2
    reader.send("basic.ack", delivery_tag=3, multiple=True)
    assert offset_of(reader.content()) == 3
    another = read(connect, stream)
    assert [offset_of(another.content()) for _ in range(4)] == [0, 1, 2, 3]


def test_readers_on_one_channel_read_side_by_side(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a", b"b")
    reader = read(connect, stream)
    assert [offset_of(reader.content()) for _ in range(2)] == [0, 1]
    reader.call("basic.consume", queue=stream, consumer_tag="second", arguments={"x-stream-offset": 1})
    message = reader.content()
    assert (message["consumer_tag"], offset_of(message), message["delivery_tag"]) == ("second", 1, 3)


def test_what_a_closed_channel_held_is_there_for_the_next(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a")
    reader = read(connect, stream)
    assert reader.content().body == b"a"
    reader.close()
    message = read(connect, stream).content()
    assert (message.body, message["redelivered"]) == (b"a", False)


def test_exclusive_readers_do_not_exclude_anybody(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a")
    first = read(connect, stream, exclusive=True)
    second = read(connect, stream, exclusive=True)
    assert (first.content().body, second.content().body) == (b"a", b"a")


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("method", ["basic.nack", "basic.reject"])
def test_nothing_can_be_given_back(
    method: str, requeue: bool, channel: WireChannel, stream: str, connect: Connect
) -> None:
    fill(channel, stream, b"a")
    reader = read(connect, stream)
    tag = reader.content()["delivery_tag"]
    assert reader.refused(method, delivery_tag=tag, requeue=requeue) == Refusal(
        "connection",
        540,
        f"NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues queue '{stream}' in vhost '/'",
        method,
    )


def test_nothing_can_be_given_back_by_a_transaction(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a")
    reader = connect().channel()
    reader.call("tx.select")
    reader.call("basic.qos", prefetch_count=1)
    reader.call("basic.consume", queue=stream, arguments={"x-stream-offset": "first"})
    reader.send("basic.nack", delivery_tag=reader.content()["delivery_tag"])
    reader.barrier()
    assert reader.refused("tx.commit") == Refusal(
        "connection",
        540,
        f"NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues queue '{stream}' in vhost '/'",
        "tx.commit",
    )


def test_basic_recover_is_refused(channel: WireChannel, stream: str, connect: Connect) -> None:
    fill(channel, stream, b"a")
    reader = read(connect, stream)
    reader.content()
    refusal = reader.refused("basic.recover", requeue=True)
    assert (refusal.scope, refusal.code in (540, 541)) == ("connection", True)  # see DIFFERENCES.md


def test_a_cancelled_reader_gets_nothing_more_and_may_still_ack(
    channel: WireChannel, stream: str, connect: Connect
) -> None:
    fill(channel, stream, b"a")
    reader = read(connect, stream)
    tag = reader.content()["delivery_tag"]
    reader.call("basic.cancel", consumer_tag="reader")
    fill(channel, stream, b"b")
    reader.send("basic.ack", delivery_tag=tag)
    reader.barrier(stream)


def test_a_deleted_stream_cancels_its_readers(channel: WireChannel, stream: str, connect: Connect) -> None:
    reader = read(connect, stream)
    channel.call("queue.delete", queue=stream)
    assert reader.expect("basic.cancel")["consumer_tag"] == "reader"


def test_a_stream_takes_what_exchanges_and_transactions_bring(
    channel: WireChannel, stream: str, connect: Connect
) -> None:
    channel.call("queue.bind", queue=stream, exchange="amq.topic", routing_key="a.#")
    channel.publish(b"routed", exchange="amq.topic", routing_key="a.b", mandatory=True)
    channel.expect("basic.ack")
    writer = connect().channel()
    writer.call("tx.select")
    writer.publish(b"undone", routing_key=stream)
    writer.call("tx.rollback")
    for body in (b"one", b"two"):
        writer.publish(body, routing_key=stream)
    writer.call("tx.commit")
    reader = read(connect, stream)
    assert [reader.content().body for _ in range(3)] == [b"routed", b"one", b"two"]


@pytest.mark.parametrize(
    "offset", ["x", "", "-1h", "FIRST", True, 1.5, None, [1], {"a": 1}], ids=lambda offset: repr(offset)
)
def test_other_things_are_no_offset(offset: Any, channel: WireChannel, stream: str) -> None:
    channel.call("basic.qos", prefetch_count=1)
    refusal = channel.refused("basic.consume", queue=stream, arguments={"x-stream-offset": offset})
    assert refusal.code in (406, 541)  # see DIFFERENCES.md


@pytest.mark.parametrize("age", ["D", "", "-1h"])
def test_other_things_are_no_age(age: str, channel: WireChannel, name: Namer) -> None:
    refusal = channel.refused(
        "queue.declare", queue=name("queue"), durable=True, arguments={**STREAM, "x-max-age": age}
    )
    assert refusal.code in (406, 541)  # see DIFFERENCES.md
