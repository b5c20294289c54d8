"""Names under `warren.`: what clients may do with the broker's own streams, by their tags, and with other names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from tests.support.wire_format import pack_publish
from warrenmq.core import definitions
from warrenmq.core.binding import make_binding
from warrenmq.core.broker import Broker
from warrenmq.core.outcome import UNROUTED
from warrenmq.core.queue import Queue
from warrenmq.storage.memory_store import MemoryStorage

EVENTS, ANALYSIS = "warren.events", "warren.analysis"
STREAM = {"x-queue-type": "stream"}
DURABLE: tuple[bool, bool, bool, dict[str, Any]] = (True, False, False, {})
TAGS: list[list[str]] = [
    [],
    ["other"],
    ["monitoring"],
    ["analysis"],
    ["monitoring", "analysis"],
    ["administrator"],
]


def serve(tags: list[str], storage: MemoryStorage | None = None) -> SocketlessServer:
    """A broker with both streams, and a user with these tags and every permission."""
    server = SocketlessServer(storage=storage)
    for name in (EVENTS, ANALYSIS):
        server.broker.vhosts["/"].declare_queue(name, True, False, False, dict(STREAM), connection=None)
    server.broker.users.add("guest", "guest", tags)
    return server


def ask(server: SocketlessServer, method: str, **arguments: Any) -> str:
    """The answer: the name of a method, or the text of a refusal."""
    client = Dialogue(server).open()
    client.say("basic.qos", 1, prefetch_count=10)
    assert client.hear() == ["basic.qos-ok"]
    client.say(method, 1, **arguments)
    (answer,) = client.methods()
    return str(answer["reply_text"]) if answer.name.endswith(".close") else answer.name


def publish(server: SocketlessServer, key: str, exchange: str = "", headers: dict[str, Any] | None = None) -> list[str]:
    """What the client hears of a mandatory publish: nothing if a queue has it."""
    client = Dialogue(server).open()
    properties = None if headers is None else {"headers": headers}
    client.line.send(pack_publish(1, b"forged", properties, routing_key=key, exchange=exchange, mandatory=True))
    return client.hear()


def count(server: SocketlessServer, name: str) -> int:
    return queue_of(server, name).message_count()


def queue_of(server: SocketlessServer, name: str) -> Queue:
    return server.broker.vhosts["/"].queues[name]


@pytest.mark.parametrize("tags", TAGS)
def test_reading_a_stream_of_the_broker_needs_a_tag(tags: list[str]) -> None:
    server = serve(tags)
    is_monitor = bool({"monitoring", "administrator"} & set(tags))
    for name, may_read in ((EVENTS, is_monitor), (ANALYSIS, is_monitor or "analysis" in tags)):
        refusal = f"ACCESS_REFUSED - read access to queue '{name}' in vhost '/' refused for user 'guest'"
        assert ask(server, "basic.consume", queue=name) == ("basic.consume-ok" if may_read else refusal)
        assert ask(server, "queue.declare", queue=name, passive=True) == ("queue.declare-ok" if may_read else refusal)
        if not may_read:
            assert ask(server, "basic.get", queue=name) == refusal
            assert ask(server, "queue.purge", queue=name) == refusal


@pytest.mark.parametrize("tags", TAGS)
def test_writing_a_stream_of_the_broker_needs_a_tag(tags: list[str]) -> None:
    server = serve(tags)
    is_administrator = "administrator" in tags
    for name, may_write in ((EVENTS, is_administrator), (ANALYSIS, is_administrator or "analysis" in tags)):
        declared = ask(server, "queue.declare", queue=name, durable=True, arguments=STREAM)
        refusal = f"ACCESS_REFUSED - configure access to queue '{name}' in vhost '/' refused for user 'guest'"
        assert declared == ("queue.declare-ok" if may_write else refusal)
        assert publish(server, name) == ([] if may_write else ["channel.close"])
        assert publish(server, name) == ([] if may_write else ["channel.close"])
        assert count(server, name) == (2 if may_write else 0)


def test_tags_count_from_the_next_publish_on() -> None:
    server = serve(["analysis"])
    client = Dialogue(server).open()
    client.publish(b"1", ANALYSIS)
    server.broker.users.add("guest", "guest", [])
    client.publish(b"2", ANALYSIS)
    assert client.hear() == ["channel.close"]
    assert count(server, ANALYSIS) == 1


@pytest.mark.parametrize("tags", [[], ["administrator"]])
def test_no_detour_leads_to_a_stream_of_the_broker(tags: list[str]) -> None:
    server = serve(tags)
    for name in (EVENTS, ANALYSIS):
        assert publish(server, "nowhere", headers={"CC": [name], "BCC": [name]}) == ["basic.return"]
        ask(server, "exchange.declare", exchange=f"x.{name}", type="fanout", arguments={"alternate-exchange": ""})
        assert publish(server, name, f"x.{name}") == ["basic.return"]
        for exchange in ("amq.fanout", "amq.topic", "amq.direct", "amq.headers"):
            for method in ("queue.bind", "queue.unbind"):
                refusal = ask(server, method, queue=name, exchange=exchange, routing_key="#")
                if method == "queue.bind" or not tags:
                    assert refusal.startswith("ACCESS_REFUSED - ")
            assert publish(server, name, exchange) == ["basic.return"]
        assert server.broker.vhosts["/"].publish("", name, bytes(14), b"") == UNROUTED  # by the broker itself
        assert count(server, name) == 0


@pytest.mark.parametrize("tags", TAGS)
def test_no_one_deletes_the_event_log(tags: list[str]) -> None:
    server = serve(tags)
    assert ask(server, "queue.delete", queue=EVENTS).startswith("ACCESS_REFUSED - ")
    assert not queue_of(server, EVENTS).is_deleted
    may_delete = bool({"analysis", "administrator"} & set(tags))
    assert (ask(server, "queue.delete", queue=ANALYSIS) == "queue.delete-ok") is may_delete


def test_the_refusal_of_a_delete_is_as_that_of_a_system_exchange() -> None:
    assert ask(serve(["administrator"]), "queue.delete", queue=EVENTS) == (
        "ACCESS_REFUSED - deletion of system queue 'warren.events' in vhost '/' not allowed"
    )


@pytest.mark.parametrize("tags", [[], ["administrator"]])
def test_other_names_under_the_prefix_are_reserved(tags: list[str]) -> None:
    server = serve(tags)
    for arguments in ({}, STREAM):
        assert ask(server, "queue.declare", queue="warren.foo", durable=True, arguments=arguments) == (
            "ACCESS_REFUSED - queue name 'warren.foo' contains reserved prefix 'warren.*'"
        )
    assert ask(server, "exchange.declare", exchange="warren.foo", type="fanout") == (
        "ACCESS_REFUSED - exchange name 'warren.foo' contains reserved prefix 'warren.*'"
    )
    assert ask(server, "queue.declare", queue="warrens") == "queue.declare-ok"


@pytest.mark.parametrize("further", [{}, {"durable": True}, {"exclusive": True}, {"arguments": STREAM}])
def test_the_name_of_a_stream_of_the_broker_cannot_be_taken_by_another_queue(further: dict[str, Any]) -> None:
    server = SocketlessServer()
    answer = ask(server, "queue.declare", queue=EVENTS, **further)
    assert answer == "ACCESS_REFUSED - queue name 'warren.events' is reserved for a durable stream"


def test_the_note_of_a_spark_reader_is_a_queue_like_any_other() -> None:
    server = serve([])
    name = "warren.reader.reporter"
    assert ask(server, "queue.declare", queue=name, durable=True) == "queue.declare-ok"
    assert publish(server, name) == []
    assert ask(server, "basic.get", queue=name) == "basic.get-ok"
    assert ask(server, "queue.delete", queue=name) == "queue.delete-ok"


def older_folder() -> MemoryStorage:
    """What an older version allowed: names under the prefix, a queue with the event log's name, and bindings."""
    storage = MemoryStorage()
    vhost = Broker(storage).vhosts["/"]
    save = vhost.broker.catalog.save
    for kind, further in (("queue", {}), ("exchange", {"type": "fanout", "internal": False})):
        definition = {"vhost": "/", "name": "warren.foo", "auto_delete": False, "arguments": {}}
        save(kind, ("/", "warren.foo"), definition | further)
    save("queue", ("/", EVENTS), {"vhost": "/", "name": EVENTS, "auto_delete": False, "arguments": {}})
    save("queue", ("/", ANALYSIS), {"vhost": "/", "name": ANALYSIS, "auto_delete": False, "arguments": dict(STREAM)})
    for name in ("warren.foo", EVENTS, ANALYSIS):
        binding = make_binding(vhost.exchange("amq.fanout"), vhost.declare_queue(f"old.{name}", *DURABLE, None), "", {})
        definition = definitions.of_binding("/", binding) | {"destination": name}
        save("binding", tuple(part.replace("old.", "") for part in definitions.binding_key("/", binding)), definition)
    return storage


def test_names_of_an_older_version_go_on_working_with_a_warning() -> None:
    server = SocketlessServer(storage=older_folder())
    server.broker.users.add("guest", "guest", [])
    assert [line for line in server.broker.recovery_warnings if "reserved prefix 'warren.*'" in line] == [
        f"{kind} 'warren.foo' in vhost '/' has a name under the reserved prefix 'warren.*': "
        "it works, but once deleted it cannot be declared again"
        for kind in ("queue", "exchange")
    ]
    assert publish(server, "warren.foo") == []
    assert publish(server, "", "amq.fanout") == []
    assert count(server, "warren.foo") == 2
    assert ask(server, "queue.declare", queue="warren.foo", durable=True) == "queue.declare-ok"
    assert ask(server, "basic.get", queue="warren.foo", no_ack=True) == "basic.get-ok"
    assert ask(server, "queue.delete", queue="warren.foo") == "queue.delete-ok"
    assert ask(server, "exchange.delete", exchange="warren.foo") == "exchange.delete-ok"
    assert "reserved prefix" in ask(server, "queue.declare", queue="warren.foo", durable=True)


def test_bindings_of_an_older_version_to_streams_of_the_broker_are_removed_for_good() -> None:
    storage = older_folder()
    server = SocketlessServer(storage=storage)
    assert sum("is removed" in line for line in server.broker.recovery_warnings) == 2
    publish(server, "", "amq.fanout")
    assert (count(server, EVENTS), count(server, ANALYSIS)) == (0, 0)
    assert not [line for line in Broker(storage).recovery_warnings if "is removed" in line]


def test_a_queue_that_has_the_event_logs_name_can_be_deleted_by_an_administrator() -> None:
    server = SocketlessServer(storage=older_folder())
    assert ask(server, "queue.delete", queue=EVENTS) == "queue.delete-ok"
