"""Exchanges: what may be declared, redeclared, bound and deleted, and the words of each refusal."""

from __future__ import annotations

import pytest

from tests.conformance.cases import AcceptedCase, RefusedCase, call, declare_exchange, declare_queue, label_of, publish
from tests.conformance.conftest import Namer
from tests.support.wire import WireChannel

NOT_DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"


def inequivalent(label: str, given: dict[str, object], when: dict[str, object], detail: str) -> RefusedCase:
    """Declaring the same exchange differently is refused, naming what differs."""
    return RefusedCase(
        f"redeclare with {label}",
        given=(declare_exchange(**given),),  # type: ignore[arg-type]
        when=declare_exchange(**when),  # type: ignore[arg-type]
        code=406,
        text=f"PRECONDITION_FAILED - inequivalent arg {detail}",
    )


REFUSED = [
    inequivalent(
        "another type",
        {},
        {"kind": "topic"},
        "'type' for exchange '{exchange}' in vhost '/': received 'topic' but current is 'direct'",
    ),
    inequivalent(
        "durable",
        {},
        {"durable": True},
        "'durable' for exchange '{exchange}' in vhost '/': received 'true' but current is 'false'",
    ),
    inequivalent(
        "not durable",
        {"durable": True},
        {},
        "'durable' for exchange '{exchange}' in vhost '/': received 'false' but current is 'true'",
    ),
    inequivalent(
        "auto-delete",
        {},
        {"auto_delete": True},
        "'auto_delete' for exchange '{exchange}' in vhost '/': received 'true' but current is 'false'",
    ),
    inequivalent(
        "internal",
        {},
        {"internal": True},
        "'internal' for exchange '{exchange}' in vhost '/': received 'true' but current is 'false'",
    ),
    inequivalent(
        "everything other names the type first",
        {},
        {"kind": "topic", "durable": True, "auto_delete": True, "internal": True},
        "'type' for exchange '{exchange}' in vhost '/': received 'topic' but current is 'direct'",
    ),
    inequivalent(
        "another type and no-wait",
        {},
        {"kind": "fanout", "no_wait": True},
        "'type' for exchange '{exchange}' in vhost '/': received 'fanout' but current is 'direct'",
    ),
    inequivalent(
        "an alternate exchange",
        {},
        {"arguments": {"alternate-exchange": "spare"}},
        "'alternate-exchange' for exchange '{exchange}' in vhost '/': "
        "received the value 'spare' of type 'longstr' but current is none",
    ),
    inequivalent(
        "no alternate exchange",
        {"arguments": {"alternate-exchange": "spare"}},
        {},
        "'alternate-exchange' for exchange '{exchange}' in vhost '/': "
        "received none but current is the value 'spare' of type 'longstr'",
    ),
    inequivalent(
        "another alternate exchange",
        {"arguments": {"alternate-exchange": "spare"}},
        {"arguments": {"alternate-exchange": "better"}},
        "'alternate-exchange' for exchange '{exchange}' in vhost '/': received 'better' but current is 'spare'",
    ),
    inequivalent(
        "a predeclared name but not durable",
        {"exchange": "amq.direct", "durable": True},
        {"exchange": "amq.direct"},
        "'durable' for exchange 'amq.direct' in vhost '/': received 'false' but current is 'true'",
    ),
    RefusedCase(
        "unknown type",
        declare_exchange(kind="x-no-such-type"),
        503,
        "COMMAND_INVALID - unknown exchange type 'x-no-such-type'",
        scope="connection",
    ),
    RefusedCase(
        "unknown type for a name that exists",
        declare_exchange(kind="x-no-such-type"),
        503,
        "COMMAND_INVALID - unknown exchange type 'x-no-such-type'",
        given=(declare_exchange(),),
        scope="connection",
    ),
    RefusedCase(
        "passive and missing",
        declare_exchange(passive=True),
        404,
        "NOT_FOUND - no exchange '{exchange}' in vhost '/'",
    ),
    RefusedCase(
        "reserved name",
        declare_exchange("amq.mine"),
        403,
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    RefusedCase(
        "reserved prefix alone",
        declare_exchange("amq."),
        403,
        "ACCESS_REFUSED - exchange name 'amq.' contains reserved prefix 'amq.*'",
    ),
    RefusedCase(
        "reserved name, passive and missing",
        declare_exchange("amq.mine", passive=True),
        404,
        "NOT_FOUND - no exchange 'amq.mine' in vhost '/'",
    ),
    RefusedCase("declare the default exchange", declare_exchange(""), 403, NOT_DEFAULT),
    RefusedCase("declare the default exchange passively", declare_exchange("", passive=True), 403, NOT_DEFAULT),
    RefusedCase("delete the default exchange", call("exchange.delete", exchange=""), 403, NOT_DEFAULT),
    RefusedCase(
        "delete a predeclared exchange",
        call("exchange.delete", exchange="amq.direct"),
        403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    ),
    RefusedCase(
        "delete a reserved name that is not there",
        call("exchange.delete", exchange="amq.mine"),
        403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.mine' in vhost '/' not allowed",
    ),
    RefusedCase(
        "delete if unused, bound to a queue",
        call("exchange.delete", exchange="{exchange}", if_unused=True),
        406,
        "PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use",
        given=(
            declare_exchange(),
            declare_queue(),
            call("queue.bind", queue="{queue}", exchange="{exchange}", routing_key="key"),
        ),
    ),
    RefusedCase(
        "delete if unused, bound to an exchange",
        call("exchange.delete", exchange="{exchange}", if_unused=True),
        406,
        "PRECONDITION_FAILED - exchange '{exchange}' in vhost '/' in use",
        given=(
            declare_exchange(),
            declare_exchange("{other}"),
            call("exchange.bind", source="{exchange}", destination="{other}"),
        ),
    ),
    RefusedCase(
        "bind from a missing exchange",
        call("exchange.bind", source="{other}", destination="{exchange}"),
        404,
        "NOT_FOUND - no exchange '{other}' in vhost '/'",
        given=(declare_exchange(),),
    ),
    RefusedCase(
        "bind to a missing exchange",
        call("exchange.bind", source="{exchange}", destination="{other}"),
        404,
        "NOT_FOUND - no exchange '{other}' in vhost '/'",
        given=(declare_exchange(),),
    ),
    RefusedCase(
        "bind, both missing, names the source",
        call("exchange.bind", source="{exchange}", destination="{other}"),
        404,
        "NOT_FOUND - no exchange '{exchange}' in vhost '/'",
    ),
    RefusedCase(
        "bind from the default exchange",
        call("exchange.bind", source="", destination="{exchange}"),
        403,
        NOT_DEFAULT,
        given=(declare_exchange(),),
    ),
    RefusedCase(
        "bind to the default exchange",
        call("exchange.bind", source="{exchange}", destination=""),
        403,
        NOT_DEFAULT,
        given=(declare_exchange(),),
    ),
    RefusedCase(
        "unbind from the default exchange",
        call("exchange.unbind", source="", destination="{exchange}"),
        403,
        NOT_DEFAULT,
        given=(declare_exchange(),),
    ),
    RefusedCase(
        "alternate exchange that is a number",
        declare_exchange(arguments={"alternate-exchange": 1}),
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' "
        "in exchange '{exchange}' in vhost '/'",
    ),
    RefusedCase(
        "headers binding with an unknown x-match",
        call("queue.bind", queue="{queue}", exchange="amq.headers", arguments={"x-match": "most"}),
        406,
        'PRECONDITION_FAILED - Invalid x-match field value <<"most">>; expected all, any, all-with-x, or any-with-x',
        given=(declare_queue(),),
    ),
    RefusedCase(
        "headers binding with a number as x-match",
        call("queue.bind", queue="{queue}", exchange="amq.headers", arguments={"x-match": 1}),
        406,
        "PRECONDITION_FAILED - Invalid x-match field type signedint (value 1); expected longstr",
        given=(declare_queue(),),
    ),
    RefusedCase(
        "publish to a missing exchange",
        publish(exchange="{exchange}"),
        404,
        "NOT_FOUND - no exchange '{exchange}' in vhost '/'",
    ),
    RefusedCase(
        "publish to an internal exchange",
        publish(exchange="{exchange}"),
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange '{exchange}' in vhost '/'",
        given=(declare_exchange(internal=True),),
    ),
]

ACCEPTED = [
    AcceptedCase("redeclare alike", declare_exchange(), given=(declare_exchange(),)),
    AcceptedCase(
        "redeclare with an argument that means nothing to the broker",
        declare_exchange(arguments={"x-note": 1}),
        given=(declare_exchange(),),
    ),
    AcceptedCase(
        "passive with every flag and type different",
        declare_exchange(kind="topic", passive=True, durable=True, auto_delete=True, internal=True),
        given=(declare_exchange(),),
    ),
    AcceptedCase(
        "passive with an unknown type",
        declare_exchange(kind="x-no-such-type", passive=True),
        given=(declare_exchange(),),
    ),
    AcceptedCase("predeclared, alike", declare_exchange("amq.direct", durable=True)),
    AcceptedCase("an access ticket means nothing", declare_exchange(ticket=7)),
    AcceptedCase("the empty alternate exchange", declare_exchange(arguments={"alternate-exchange": ""})),
    AcceptedCase("delete what is not there", call("exchange.delete", exchange="{exchange}")),
    AcceptedCase("delete if unused what is not there", call("exchange.delete", exchange="{exchange}", if_unused=True)),
    AcceptedCase(
        "delete if unused, bound only as a destination",
        call("exchange.delete", exchange="{other}", if_unused=True),
        given=(
            declare_exchange(),
            declare_exchange("{other}"),
            call("exchange.bind", source="{exchange}", destination="{other}"),
        ),
    ),
    AcceptedCase(
        "bind an exchange to itself",
        call("exchange.bind", source="{exchange}", destination="{exchange}"),
        given=(declare_exchange(),),
    ),
    AcceptedCase(
        "bind to an internal exchange",
        call("exchange.bind", source="{exchange}", destination="{other}"),
        given=(declare_exchange(), declare_exchange("{other}", internal=True)),
    ),
    AcceptedCase(
        "unbind what was never bound",
        call("exchange.unbind", source="{exchange}", destination="{other}"),
        given=(declare_exchange(), declare_exchange("{other}")),
    ),
    AcceptedCase(
        "unbind from a missing exchange",
        call("exchange.unbind", source="{other}", destination="{exchange}"),
        given=(declare_exchange(),),
    ),
    AcceptedCase(
        "unbind a missing exchange",
        call("exchange.unbind", source="{exchange}", destination="{other}"),
        given=(declare_exchange(),),
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=label_of)
def test_refused(case: RefusedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize("case", ACCEPTED, ids=label_of)
def test_accepted(case: AcceptedCase, channel: WireChannel, name: Namer) -> None:
    case.run(channel, name)


@pytest.mark.parametrize(
    ("exchange", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_predeclared_exchanges_are_durable_and_of_their_type(channel: WireChannel, exchange: str, kind: str) -> None:
    channel.call("exchange.declare", exchange=exchange, type=kind, durable=True)


@pytest.mark.parametrize("match", ["all", "any", "all-with-x", "any-with-x"])
def test_headers_bindings_know_four_ways_to_match(channel: WireChannel, queue: str, match: str) -> None:
    channel.call("queue.bind", queue=queue, exchange="amq.headers", arguments={"x-match": match})


def test_line_breaks_are_dropped_from_a_declared_name(channel: WireChannel, name: Namer) -> None:
    exchange = name("broken")
    channel.call("exchange.declare", exchange=exchange.replace("broken", "bro\r\nken"), type="direct")
    channel.call("exchange.declare", exchange=exchange, type="direct", passive=True)


def test_a_name_may_have_255_bytes(channel: WireChannel, name: Namer) -> None:
    longest = name("x" * (255 - len(name(""))))
    assert len(longest) == 255
    channel.call("exchange.declare", exchange=longest, type="direct")
    channel.call("exchange.declare", exchange=longest, type="direct", passive=True)


def test_no_wait_is_not_answered(channel: WireChannel, name: Namer) -> None:
    exchange, other = name("quiet"), name("other")
    channel.send("exchange.declare", exchange=exchange, type="direct", no_wait=True)
    channel.send("exchange.declare", exchange=other, type="direct", no_wait=True)
    channel.send("exchange.bind", source=exchange, destination=other, no_wait=True)
    channel.send("exchange.unbind", source=exchange, destination=other, no_wait=True)
    channel.send("exchange.delete", exchange=other, no_wait=True)
    channel.barrier()
    channel.call("exchange.declare", exchange=exchange, type="direct", passive=True)


def test_a_deleted_exchange_takes_its_bindings_along(channel: WireChannel, queue: str, name: Namer) -> None:
    exchange = name("brief")
    channel.call("exchange.declare", exchange=exchange, type="direct")
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="key")
    channel.call("exchange.delete", exchange=exchange)
    channel.call("exchange.declare", exchange=exchange, type="direct")
    channel.publish(b"nobody's", exchange=exchange, routing_key="key", mandatory=True)
    assert channel.content("basic.return").body == b"nobody's"


def test_what_an_exchange_cannot_route_goes_to_its_alternate(channel: WireChannel, queue: str, name: Namer) -> None:
    exchange, spare = name("exchange"), name("spare")
    channel.call("exchange.declare", exchange=spare, type="fanout")
    channel.call("exchange.declare", exchange=exchange, type="direct", arguments={"alternate-exchange": spare})
    channel.call("queue.bind", queue=queue, exchange=spare)
    channel.publish(b"found a way", exchange=exchange, routing_key="unbound", mandatory=True)
    message = channel.get(queue)
    assert message is not None
    assert (message.body, message["exchange"], message["routing_key"]) == (b"found a way", exchange, "unbound")


def test_a_missing_alternate_routes_nothing(channel: WireChannel, name: Namer) -> None:
    arguments = {"alternate-exchange": name("missing")}
    channel.call("exchange.declare", exchange=name("exchange"), type="direct", arguments=arguments)
    channel.publish(b"nobody's", exchange=name("exchange"), mandatory=True)
    assert channel.content("basic.return").body == b"nobody's"


def test_alternates_in_a_circle_route_nothing(channel: WireChannel, name: Namer) -> None:
    for exchange, spare in ((name("one"), name("two")), (name("two"), name("one"))):
        arguments = {"alternate-exchange": spare}
        channel.call("exchange.declare", exchange=exchange, type="direct", arguments=arguments)
    channel.publish(b"nobody's", exchange=name("one"), mandatory=True)
    assert channel.content("basic.return").body == b"nobody's"


def test_an_internal_exchange_is_reached_through_a_binding(channel: WireChannel, queue: str, name: Namer) -> None:
    outer, inner = name("outer"), name("inner")
    channel.call("exchange.declare", exchange=outer, type="direct")
    channel.call("exchange.declare", exchange=inner, type="fanout", internal=True)
    channel.call("exchange.bind", source=outer, destination=inner, routing_key="key")
    channel.call("queue.bind", queue=queue, exchange=inner)
    channel.publish(b"inside", exchange=outer, routing_key="key", mandatory=True)
    message = channel.get(queue)
    assert message is not None
    assert message.body == b"inside"


def test_exchanges_bound_in_a_circle_deliver_once(channel: WireChannel, queue: str, name: Namer) -> None:
    one, two = name("one"), name("two")
    for exchange in (one, two):
        channel.call("exchange.declare", exchange=exchange, type="fanout")
        channel.call("queue.bind", queue=queue, exchange=exchange)
    channel.call("exchange.bind", source=one, destination=two)
    channel.call("exchange.bind", source=two, destination=one)
    channel.publish(b"once", exchange=one)
    channel.barrier(queue)
    assert channel.get(queue) is not None
    assert channel.get(queue) is None
