"""Queues: what may be declared, redeclared, bound, purged and deleted, and the words of each refusal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, Step, call, declare_queue, label_of, publish
from tests.conformance.conftest import Connect, Namer
from tests.support.wire import Refusal, WireChannel
from tests.support.wire_format import Tagged

NOT_DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"
NO_LAST_QUEUE = "NOT_FOUND - no previously declared queue"
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the original declaration."
)
BIND = {"queue": "{queue}", "exchange": "amq.direct", "routing_key": "key"}


def inequivalent(label: str, given: dict[str, Any], when: dict[str, Any], argument: str, detail: str) -> RefusedCase:
    """Declaring the same queue differently is refused, naming what differs."""
    return RefusedCase(
        f"redeclare with {label}",
        given=(declare_queue(**given),),
        when=declare_queue(**when),
        code=406,
        text=f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{{queue}}' in vhost '/': {detail}",
    )


def added(argument: str, value: Any, kind: str) -> RefusedCase:
    """An argument that the existing queue has not."""
    printed = str(value).lower() if isinstance(value, bool) else value
    detail = f"received the value '{printed}' of type '{kind}' but current is none"
    return inequivalent(f"{argument} added", {}, {"arguments": {argument: value}}, argument, detail)


REDECLARED = [
    inequivalent("durable", {}, {"durable": True}, "durable", "received 'true' but current is 'false'"),
    inequivalent("not durable", {"durable": True}, {}, "durable", "received 'false' but current is 'true'"),
    inequivalent("auto-delete", {}, {"auto_delete": True}, "auto_delete", "received 'true' but current is 'false'"),
    inequivalent(
        "several others names durable first",
        {},
        {"durable": True, "auto_delete": True, "arguments": {"x-max-length": 1}},
        "durable",
        "received 'true' but current is 'false'",
    ),
    inequivalent(
        "durable and no-wait",
        {},
        {"durable": True, "no_wait": True},
        "durable",
        "received 'true' but current is 'false'",
    ),
    added("x-message-ttl", 1000, "signedint"),
    added("x-expires", 50000, "signedint"),
    added("x-max-length", 5, "signedint"),
    added("x-max-length-bytes", 5, "signedint"),
    added("x-max-priority", 5, "signedint"),
    added("x-overflow", "drop-head", "longstr"),
    added("x-dead-letter-exchange", "graveyard", "longstr"),
    added("x-queue-mode", "lazy", "longstr"),
    added("x-single-active-consumer", True, "bool"),
    inequivalent(
        "x-message-ttl removed",
        {"arguments": {"x-message-ttl": 1000}},
        {},
        "x-message-ttl",
        "received none but current is the value '1000' of type 'signedint'",
    ),
    inequivalent(
        "x-message-ttl changed",
        {"arguments": {"x-message-ttl": 1000}},
        {"arguments": {"x-message-ttl": 2000}},
        "x-message-ttl",
        "received '2000' but current is '1000'",
    ),
    inequivalent(
        "x-message-ttl of the same size but no integer",
        {"arguments": {"x-message-ttl": 5}},
        {"arguments": {"x-message-ttl": 5.0}},
        "x-message-ttl",
        "received '5.0' but current is '5'",
    ),
    inequivalent(
        "x-message-ttl that could not be declared",
        {},
        {"arguments": {"x-message-ttl": -1}},
        "x-message-ttl",
        "received the value '-1' of type 'signedint' but current is none",
    ),
    inequivalent(
        "x-dead-letter-exchange changed",
        {"arguments": {"x-dead-letter-exchange": "here"}},
        {"arguments": {"x-dead-letter-exchange": "there"}},
        "x-dead-letter-exchange",
        "received 'there' but current is 'here'",
    ),
    inequivalent(
        "x-dead-letter-routing-key added",
        {"arguments": {"x-dead-letter-exchange": "here"}},
        {"arguments": {"x-dead-letter-exchange": "here", "x-dead-letter-routing-key": "key"}},
        "x-dead-letter-routing-key",
        "received the value 'key' of type 'longstr' but current is none",
    ),
    RefusedCase("redeclare as exclusive", declare_queue(exclusive=True), 405, LOCKED, given=(declare_queue(),)),
    RefusedCase(
        "redeclare as exclusive and durable",
        declare_queue(exclusive=True, durable=True),
        405,
        LOCKED,
        given=(declare_queue(),),
    ),
    RefusedCase(
        "redeclare an exclusive one as shared", declare_queue(), 405, LOCKED, given=(declare_queue(exclusive=True),)
    ),
]


def invalid(arguments: dict[str, Any], argument: str, detail: str) -> RefusedCase:
    """A queue argument that cannot be meant."""
    return RefusedCase(
        f"argument {argument} {arguments[argument]!r}",
        declare_queue(arguments=arguments),
        406,
        f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{{queue}}' in vhost '/': {detail}",
    )


CENTURY_MS = 86_400_000 * 365 * 100
TOO_LONG_MS = 315_360_000_001  # ten years and a millisecond

INVALID_ARGUMENTS = [
    invalid({"x-message-ttl": -1}, "x-message-ttl", "{value_negative,-1}"),
    invalid({"x-message-ttl": "1000"}, "x-message-ttl", '"expected integer, got longstr"'),
    invalid({"x-message-ttl": 1.5}, "x-message-ttl", '"expected integer, got double"'),
    invalid({"x-message-ttl": True}, "x-message-ttl", '"expected integer, got bool"'),
    invalid({"x-message-ttl": None}, "x-message-ttl", '"expected integer, got void"'),
    invalid({"x-message-ttl": TOO_LONG_MS}, "x-message-ttl", f"{{value_too_large,{TOO_LONG_MS}}}"),
    invalid({"x-expires": 0}, "x-expires", "{value_zero,0}"),
    invalid({"x-expires": -1}, "x-expires", "{value_negative,-1}"),
    invalid({"x-expires": "soon"}, "x-expires", '"expected integer, got longstr"'),
    invalid({"x-expires": CENTURY_MS}, "x-expires", f"{{value_too_large,{CENTURY_MS}}}"),
    invalid({"x-max-length": -1}, "x-max-length", "{value_negative,-1}"),
    invalid({"x-max-length": "few"}, "x-max-length", '"expected integer, got longstr"'),
    invalid({"x-max-length-bytes": -1}, "x-max-length-bytes", "{value_negative,-1}"),
    invalid({"x-max-length-bytes": "few"}, "x-max-length-bytes", '"expected integer, got longstr"'),
    invalid({"x-max-priority": 256}, "x-max-priority", "{max_value_exceeded,256}"),
    invalid({"x-max-priority": -1}, "x-max-priority", "{value_negative,-1}"),
    invalid({"x-max-priority": "high"}, "x-max-priority", '"expected integer, got longstr"'),
    invalid({"x-overflow": "spill"}, "x-overflow", "invalid_overflow"),
    invalid({"x-overflow": 1}, "x-overflow", "{unacceptable_type,signedint}"),
    invalid({"x-dead-letter-routing-key": "key"}, "x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"),
    invalid(
        {"x-dead-letter-exchange": "here", "x-dead-letter-routing-key": 1},
        "x-dead-letter-routing-key",
        "{unacceptable_type,signedint}",
    ),
    invalid({"x-queue-type": "spiral"}, "x-queue-type", "\"unsupported queue type 'spiral'\""),
    invalid({"x-queue-type": 1}, "x-queue-type", "{unacceptable_type,signedint}"),
    invalid({"x-queue-mode": "eager"}, "x-queue-mode", "\"unsupported queue mode 'eager'\""),
    invalid({"x-queue-mode": 1}, "x-queue-mode", "{unacceptable_type,signedint}"),
    invalid({"x-single-active-consumer": 1}, "x-single-active-consumer", "{unacceptable_type,signedint}"),
    RefusedCase(
        "argument x-dead-letter-exchange 1",
        declare_queue(arguments={"x-dead-letter-exchange": 1}),
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' "
        "in queue '{queue}' in vhost '/'",
    ),
]

MISSING = "NOT_FOUND - no queue '{queue}' in vhost '/'"

REFUSED = [
    RefusedCase("passive and missing", declare_queue(passive=True), 404, MISSING),
    RefusedCase("passive and missing and no-wait", declare_queue(passive=True, no_wait=True), 404, MISSING),
    RefusedCase("passive without a name", declare_queue("", passive=True), 404, "NOT_FOUND - no queue '' in vhost '/'"),
    RefusedCase(
        "passive without a name after a declaration",
        declare_queue("", passive=True),
        404,
        "NOT_FOUND - no queue '' in vhost '/'",
        given=(declare_queue(),),
    ),
    RefusedCase(
        "reserved name",
        declare_queue("amq.mine"),
        403,
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    RefusedCase(
        "reserved name, passive and missing",
        declare_queue("amq.gen-mine", passive=True),
        404,
        "NOT_FOUND - no queue 'amq.gen-mine' in vhost '/'",
    ),
    RefusedCase("bind a missing queue", call("queue.bind", **BIND), 404, MISSING),
    RefusedCase(
        "bind to a missing exchange",
        call("queue.bind", queue="{queue}", exchange="{exchange}"),
        404,
        "NOT_FOUND - no exchange '{exchange}' in vhost '/'",
        given=(declare_queue(),),
    ),
    RefusedCase(
        "bind, both missing, names the exchange",
        call("queue.bind", queue="{queue}", exchange="{exchange}"),
        404,
        "NOT_FOUND - no exchange '{exchange}' in vhost '/'",
    ),
    RefusedCase(
        "bind to the default exchange",
        call("queue.bind", queue="{queue}", exchange="", routing_key="{queue}"),
        403,
        NOT_DEFAULT,
        given=(declare_queue(),),
    ),
    RefusedCase(
        "unbind from the default exchange",
        call("queue.unbind", queue="{queue}", exchange="", routing_key="{queue}"),
        403,
        NOT_DEFAULT,
        given=(declare_queue(),),
    ),
    RefusedCase("bind without a name", call("queue.bind", queue="", exchange="amq.direct"), 404, NO_LAST_QUEUE),
    RefusedCase("unbind without a name", call("queue.unbind", queue="", exchange="amq.direct"), 404, NO_LAST_QUEUE),
    RefusedCase("purge without a name", call("queue.purge", queue=""), 404, NO_LAST_QUEUE),
    RefusedCase("delete without a name", call("queue.delete", queue=""), 404, NO_LAST_QUEUE),
    RefusedCase("get without a name", call("basic.get", queue=""), 404, NO_LAST_QUEUE),
    RefusedCase("consume without a name", call("basic.consume", queue=""), 404, NO_LAST_QUEUE),
    RefusedCase("purge a missing queue", call("queue.purge", queue="{queue}"), 404, MISSING),
    RefusedCase(
        "delete if unused, with a consumer",
        call("queue.delete", queue="{queue}", if_unused=True),
        406,
        "PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use",
        given=(declare_queue(), call("basic.consume", queue="{queue}")),
    ),
    RefusedCase(
        "delete if empty, with a message",
        call("queue.delete", queue="{queue}", if_empty=True),
        406,
        "PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty",
        given=(declare_queue(), publish(routing_key="{queue}")),
    ),
]

ACCEPTED = [
    AcceptedCase("redeclare alike", declare_queue(), given=(declare_queue(),), answer={"queue": "{queue}"}),
    AcceptedCase(
        "redeclare alike with arguments in another order",
        declare_queue(arguments={"x-max-length": 1, "x-expires": 60000}),
        given=(declare_queue(arguments={"x-expires": 60000, "x-max-length": 1}),),
    ),
    AcceptedCase(
        "redeclare with a number of another width",
        declare_queue(arguments={"x-message-ttl": Tagged("l", 1000)}),
        given=(declare_queue(arguments={"x-message-ttl": Tagged("s", 1000)}),),
    ),
    AcceptedCase(
        "redeclare with an argument that means nothing to the broker",
        declare_queue(arguments={"x-note": {"any": ["thing"]}}),
        given=(declare_queue(arguments={"x-note": 1}),),
    ),
    AcceptedCase(
        "redeclare naming the default queue type",
        declare_queue(arguments={"x-queue-type": "classic"}),
        given=(declare_queue(),),
    ),
    AcceptedCase(
        "passive with every flag different",
        declare_queue(passive=True, durable=True, auto_delete=True, arguments={"x-expires": 3}),
        given=(declare_queue(),),
    ),
    AcceptedCase("no messages and no consumers", declare_queue(), answer={"message_count": 0, "consumer_count": 0}),
    AcceptedCase("x-message-ttl of zero", declare_queue(arguments={"x-message-ttl": 0})),
    AcceptedCase("x-message-ttl of ten years", declare_queue(arguments={"x-message-ttl": 315_360_000_000})),
    AcceptedCase("x-max-length of zero", declare_queue(arguments={"x-max-length": 0})),
    AcceptedCase("x-max-priority of zero", declare_queue(arguments={"x-max-priority": 0})),
    AcceptedCase("x-overflow drop-head", declare_queue(arguments={"x-overflow": "drop-head"})),
    AcceptedCase("x-overflow reject-publish", declare_queue(arguments={"x-overflow": "reject-publish"})),
    AcceptedCase("x-overflow reject-publish-dlx", declare_queue(arguments={"x-overflow": "reject-publish-dlx"})),
    AcceptedCase("x-dead-letter-exchange that is the default", declare_queue(arguments={"x-dead-letter-exchange": ""})),
    AcceptedCase("x-dead-letter-exchange that is missing", declare_queue(arguments={"x-dead-letter-exchange": "no"})),
    AcceptedCase("x-queue-mode lazy", declare_queue(arguments={"x-queue-mode": "lazy"})),
    AcceptedCase("bind twice", call("queue.bind", **BIND), given=(declare_queue(), call("queue.bind", **BIND))),
    AcceptedCase("unbind what was never bound", call("queue.unbind", **BIND), given=(declare_queue(),)),
    AcceptedCase("unbind a missing queue", call("queue.unbind", **BIND)),
    AcceptedCase(
        "unbind from a missing exchange",
        call("queue.unbind", queue="{queue}", exchange="{exchange}"),
        given=(declare_queue(),),
    ),
    AcceptedCase("delete what is not there", call("queue.delete", queue="{queue}"), answer={"message_count": 0}),
    AcceptedCase(
        "delete what is not there if unused and empty",
        call("queue.delete", queue="{queue}", if_unused=True, if_empty=True),
        answer={"message_count": 0},
    ),
]

LOCKED_STEPS = [
    declare_queue(),
    declare_queue(exclusive=True),
    declare_queue(passive=True),
    call("queue.bind", **BIND),
    call("queue.purge", queue="{queue}"),
    call("queue.delete", queue="{queue}"),
    call("basic.get", queue="{queue}"),
    call("basic.consume", queue="{queue}"),
]


@pytest.mark.parametrize("case", REDECLARED + INVALID_ARGUMENTS + REFUSED, ids=label_of)
def test_refused(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", ACCEPTED, ids=label_of)
def test_accepted(case: AcceptedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("step", LOCKED_STEPS, ids=lambda step: f"{step.method}-{'-'.join(step.arguments)}")
def test_an_exclusive_queue_is_closed_to_other_connections(
    step: Step, connect: Connect, channel: WireChannel, name: Namer
) -> None:
    channel.call("queue.declare", queue=name("queue"), exclusive=True)
    stranger = connect().channel()
    step.send(stranger, {"queue": name("queue")})
    text = LOCKED.replace("{queue}", name("queue"))
    assert stranger.expect_refusal() == Refusal("channel", 405, text, step.method)


def test_an_exclusive_queue_takes_messages_from_other_connections(
    connect: Connect, channel: WireChannel, queue: str
) -> None:
    stranger = connect().channel()
    stranger.call("confirm.select")
    stranger.publish(b"for you", routing_key=queue)
    stranger.expect("basic.ack")
    message = channel.get(queue)
    assert message is not None
    assert message.body == b"for you"


def test_server_named_queues_have_unique_reserved_names(channel: WireChannel) -> None:
    names = [channel.call("queue.declare", exclusive=True)["queue"] for _ in range(3)]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", each) for each in names)


def test_the_empty_name_is_the_queue_declared_last_on_the_channel(channel: WireChannel, name: Namer) -> None:
    for label in ("first", "last"):
        channel.call("queue.declare", queue=name(label))
    channel.publish(b"to the last", routing_key=name("last"))
    message = channel.get("")
    assert message is not None
    assert message.body == b"to the last"
    assert channel.call("queue.purge", queue="")["message_count"] == 0
    channel.call("queue.delete", queue="")
    assert channel.refused("basic.get", queue="").code == 404


def test_binding_the_empty_name_with_an_empty_key_binds_by_the_queues_name(channel: WireChannel, queue: str) -> None:
    channel.call("queue.bind", queue="", exchange="amq.direct", routing_key="")
    channel.publish(b"by name", exchange="amq.direct", routing_key=queue)
    message = channel.get(queue)
    assert message is not None
    assert message["routing_key"] == queue


def test_binding_a_given_name_with_an_empty_key_keeps_the_key_empty(channel: WireChannel, queue: str) -> None:
    channel.call("queue.bind", queue=queue, exchange="amq.direct", routing_key="")
    channel.publish(b"by name", exchange="amq.direct", routing_key=queue, mandatory=True)
    assert channel.content("basic.return").body == b"by name"


def test_bindings_that_differ_in_arguments_are_two(channel: WireChannel, queue: str, name: Namer) -> None:
    binding: dict[str, Any] = {"queue": queue, "exchange": "amq.direct", "routing_key": name("key")}
    message: dict[str, Any] = {"exchange": "amq.direct", "routing_key": name("key"), "mandatory": True}
    channel.call("queue.bind", **binding)
    channel.call("queue.bind", **binding, arguments={"note": 1})
    channel.publish(b"once", **message)
    channel.call("queue.unbind", **binding)
    channel.publish(b"again", **message)
    channel.call("queue.unbind", **binding, arguments={"note": 1})
    channel.publish(b"nowhere", **message)
    assert channel.content("basic.return").body == b"nowhere"
    bodies = [message.body for message in iter(lambda: channel.get(queue), None)]
    assert bodies == [b"once", b"again"]


def test_line_breaks_are_dropped_from_a_declared_name(channel: WireChannel, name: Namer) -> None:
    queue = name("broken")
    answer = channel.call("queue.declare", queue=queue.replace("broken", "bro\r\nken"))
    assert answer["queue"] == queue
    channel.call("queue.declare", queue=queue, passive=True)


def test_no_wait_is_not_answered(channel: WireChannel, name: Namer) -> None:
    queue = name("quiet")
    channel.send("queue.declare", queue=queue, no_wait=True)
    channel.send("queue.bind", queue=queue, exchange="amq.direct", routing_key=queue, no_wait=True)
    channel.publish(b"one", exchange="amq.direct", routing_key=queue)
    channel.send("queue.purge", queue=queue, no_wait=True)
    channel.barrier()
    assert channel.call("queue.declare", queue=queue, passive=True)["message_count"] == 0
    channel.send("queue.delete", queue=queue, no_wait=True)
    assert channel.refused("queue.declare", queue=queue, passive=True).code == 404


def test_counts_tell_ready_messages_and_consumers(channel: WireChannel, queue: str) -> None:
    for _ in range(3):
        channel.publish(b"waiting", routing_key=queue)
    channel.get(queue, no_ack=False)
    answer = channel.call("queue.declare", queue=queue, passive=True)
    assert (answer["message_count"], answer["consumer_count"]) == (2, 0)


def test_purge_and_delete_count_ready_messages_only(channel: WireChannel, queue: str) -> None:
    for _ in range(3):
        channel.publish(b"waiting", routing_key=queue)
    channel.get(queue, no_ack=False)
    assert channel.call("queue.purge", queue=queue)["message_count"] == 2
    channel.publish(b"one more", routing_key=queue)
    assert channel.call("queue.delete", queue=queue)["message_count"] == 1


def test_if_empty_looks_at_ready_messages_only(channel: WireChannel, queue: str) -> None:
    channel.publish(b"held", routing_key=queue)
    channel.get(queue, no_ack=False)
    channel.call("queue.delete", queue=queue, if_empty=True)
