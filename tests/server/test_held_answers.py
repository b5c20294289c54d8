"""Answers that promise something durable: held until the epoch is, and the client's next methods with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import PERSISTENT
from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from tests.support.storage import ManualStorage
from tests.support.wire import Address, WireConnection
from tests.support.wire_format import METHOD, Method, pack_frame, pack_method, pack_publish
from warrenmq.core.ports import WRITTEN
from warrenmq.embedded import event_loop_factory
from warrenmq.node import Node, NodeOptions
from warrenmq.server.options import ServerOptions


class Held(SocketlessServer):
    """A server whose log is as slow as the test wants."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.storage = ManualStorage()
        super().__init__(options, self.storage)
        self.commit()

    def commit(self) -> None:
        """Let the turn end and its epoch become durable."""
        self.ticker.schedule()
        self.loop.run()
        self.broker.storage.log.advance(self.storage.log.epoch, self.storage.log.epoch)
        self.loop.run()


@pytest.fixture
def server() -> Held:
    return Held()


@pytest.fixture
def client(server: Held) -> Dialogue:
    return Dialogue(server).open()


@pytest.fixture
def other(server: Held) -> Dialogue:
    return Dialogue(server).open()


def method(name: str, channel: int = 1, **arguments: Any) -> bytes:
    return pack_frame(METHOD, channel, pack_method(name, **arguments))


def declare(queue: str, **arguments: Any) -> bytes:
    return method("queue.declare", queue=queue, durable=True, **arguments)


def persistent(body: bytes, key: str) -> bytes:
    return pack_publish(1, body, {"delivery_mode": PERSISTENT}, routing_key=key)


def prepare(server: Held, client: Dialogue) -> None:
    """A durable queue and exchange, bound, with a message; all of it safe."""
    client.line.send(
        declare("q", no_wait=True)
        + method("exchange.declare", exchange="x", type="fanout", durable=True, no_wait=True)
        + method("queue.bind", queue="q", exchange="x", no_wait=True)
        + persistent(b"1", "q")
    )
    server.commit()
    assert client.hear() == []


# -- which answers wait


DURABLE = [
    ("queue.declare", {"queue": "new", "durable": True}),
    ("queue.delete", {"queue": "q"}),
    ("queue.bind", {"queue": "q", "exchange": "x", "routing_key": "k"}),
    ("queue.unbind", {"queue": "q", "exchange": "x"}),
    ("queue.purge", {"queue": "q"}),
    ("exchange.declare", {"exchange": "new", "type": "fanout", "durable": True}),
    ("exchange.delete", {"exchange": "x"}),
    ("exchange.bind", {"source": "x", "destination": "amq.fanout"}),
]
TRANSIENT = [
    ("queue.declare", {"queue": "new"}),
    ("queue.declare", {"queue": "new", "durable": True, "exclusive": True}),
    ("queue.declare", {"queue": "q", "passive": True}),
    ("queue.declare", {"queue": "q", "durable": True}),
    ("queue.delete", {"queue": "none"}),
    ("queue.bind", {"queue": "q", "exchange": "x"}),
    ("queue.unbind", {"queue": "q", "exchange": "x", "routing_key": "never bound"}),
    ("exchange.declare", {"exchange": "new", "type": "fanout"}),
    ("exchange.declare", {"exchange": "x", "type": "fanout", "durable": True}),
    ("exchange.delete", {"exchange": "none"}),
    ("basic.get", {"queue": "q", "no_ack": True}),
    ("basic.consume", {"queue": "q", "consumer_tag": "c"}),
]


@pytest.mark.parametrize(("name", "arguments"), DURABLE)
def test_reply_waits_until_a_durable_change_is_safe(
    server: Held, client: Dialogue, name: str, arguments: dict[str, Any]
) -> None:
    prepare(server, client)
    client.say(name, 1, **arguments)
    assert client.hear() == []
    server.broker.storage.log.advance(server.storage.log.epoch, 0)
    assert client.hear() == []
    server.commit()
    assert client.hear() == [f"{name}-ok"]
    assert client.line.is_reading


@pytest.mark.parametrize(("name", "arguments"), TRANSIENT)
def test_reply_is_immediate_without_durable_changes(
    server: Held, client: Dialogue, name: str, arguments: dict[str, Any]
) -> None:
    prepare(server, client)
    client.say(name, 1, **arguments)
    assert client.hear()[0] == f"{name}-ok"


def test_a_commit_is_answered_when_it_is_safe(server: Held, client: Dialogue) -> None:
    prepare(server, client)
    client.say("tx.select", 1)
    client.line.send(persistent(b"2", "q"))
    client.say("tx.commit", 1)
    assert client.hear() == ["tx.select-ok"]
    server.commit()
    assert client.hear() == ["tx.commit-ok"]
    client.publish(b"transient", "q")
    client.say("tx.commit", 1)
    assert client.hear() == ["tx.commit-ok"]


def test_a_commit_of_acks_alone_waits_too(server: Held, client: Dialogue) -> None:
    prepare(server, client)
    client.say("tx.select", 1)
    client.say("basic.get", 1, queue="q")
    client.say("basic.ack", 1, delivery_tag=1)
    assert client.hear() == ["tx.select-ok", "basic.get-ok"]
    client.say("tx.commit", 1)
    assert client.hear() == []
    server.commit()
    assert client.hear() == ["tx.commit-ok"]


def test_in_a_broker_that_does_not_sync_each_epoch_answers_wait_until_it_is_written(
    server: Held, client: Dialogue
) -> None:
    server.storage.log.reply_level = WRITTEN
    client.line.send(declare("q"))
    assert client.hear() == []
    server.broker.storage.log.advance(server.storage.log.epoch, 0)
    assert client.hear() == ["queue.declare-ok"]


@pytest.mark.parametrize("settles", [False, True])
def test_there_a_commit_that_touches_a_queue_that_syncs_waits_for_the_disk(
    server: Held, client: Dialogue, settles: bool
) -> None:
    prepare(server, client)
    server.storage.log.reply_level = WRITTEN
    client.say("tx.select", 1)
    if settles:
        client.say("basic.get", 1, queue="q")
        client.say("basic.ack", 1, delivery_tag=1)
    else:
        client.line.send(persistent(b"2", "q"))
    client.hear()
    client.say("tx.commit", 1)
    server.broker.storage.log.advance(server.storage.log.epoch, 0)
    assert client.hear() == []
    server.commit()
    assert client.hear() == ["tx.commit-ok"]


def test_no_wait_is_not_held(server: Held, client: Dialogue) -> None:
    client.line.send(declare("q", no_wait=True) + method("basic.qos", prefetch_count=1))
    assert client.hear() == ["basic.qos-ok"]
    assert client.line.is_reading


@pytest.mark.parametrize("is_same_turn", [True, False])
def test_another_client_does_not_see_a_queue_before_it_is_durable(
    server: Held, client: Dialogue, other: Dialogue, is_same_turn: bool
) -> None:
    client.line.send(declare("q", no_wait=True), ends_turn=not is_same_turn)
    other.line.send(declare("q"))
    assert other.hear() == []
    server.commit()
    assert other.hear() == ["queue.declare-ok"]


def test_another_client_does_not_see_a_deletion_before_it_is_durable(
    server: Held, client: Dialogue, other: Dialogue
) -> None:
    prepare(server, client)
    client.line.send(method("queue.delete", queue="q", no_wait=True))
    other.line.send(method("queue.delete", queue="q"))
    assert other.hear() == []
    server.commit()
    assert other.hear() == ["queue.delete-ok"]


# -- what follows a held answer


def test_pipelined_declares_are_answered_one_after_the_other(server: Held, client: Dialogue) -> None:
    client.line.send(b"".join(declare(name) for name in "abc") + method("basic.qos", prefetch_count=1))
    heard = []
    for _ in range(3):
        assert client.hear() == []
        assert not client.line.is_reading
        server.commit()
        heard.append(client.methods())
    assert [[answer.name for answer in answers] for answers in heard] == [
        ["queue.declare-ok"],
        ["queue.declare-ok"],
        ["queue.declare-ok", "basic.qos-ok"],
    ]
    assert [answers[0]["queue"] for answers in heard] == ["a", "b", "c"]
    assert client.line.is_reading


def test_a_publish_behind_a_declare_finds_the_queue_and_waits_its_turn(server: Held, client: Dialogue) -> None:
    client.say("confirm.select", 1)
    client.line.send(declare("q") + persistent(b"1", "q") + method("basic.get", queue="q", no_ack=False))
    assert client.hear() == ["confirm.select-ok"]
    server.commit()
    assert client.hear() == ["queue.declare-ok", "basic.get-ok"]
    server.commit()
    assert client.hear() == ["basic.ack"]


def test_a_frame_that_has_not_come_whole_is_completed_after_the_answer(server: Held, client: Dialogue) -> None:
    frames = declare("a") + declare("b") + pack_publish(1, b"x" * 1000, None, routing_key="a")
    frames += method("basic.get", queue="a", no_ack=True)
    for cut in range(1, len(frames), 7):
        client.line.send(frames[:cut])
        client.line.send(frames[cut:])
        server.commit()
        server.commit()
        assert client.hear() == ["queue.declare-ok", "queue.declare-ok", "basic.get-ok"], cut
        client.line.send(
            method("queue.delete", queue="a", no_wait=True) + method("queue.delete", queue="b", no_wait=True)
        )
        server.commit()


def test_input_during_a_held_reply_is_read_afterwards(server: Held, client: Dialogue) -> None:
    client.line.send(declare("q"))
    client.line.send(method("basic.qos", prefetch_count=1))
    client.line.send(declare("r"))
    assert client.hear() == []
    server.commit()
    assert client.hear() == ["queue.declare-ok", "basic.qos-ok"]
    server.commit()
    assert client.hear() == ["queue.declare-ok"]


def test_a_full_receive_buffer_behind_a_held_answer_is_read_afterwards(server: Held, client: Dialogue) -> None:
    body = b"x" * 100_000
    count = 8
    publishes = b"".join(pack_publish(1, b"%d" % number + body, None, routing_key="q") for number in range(count))
    client.line.send(declare("q") + publishes)
    server.commit()
    client.hear()
    client.line.send(method("basic.consume", queue="q", consumer_tag="c", no_ack=True))
    assert client.hear() == ["basic.consume-ok"] + ["basic.deliver"] * count


def test_one_connection_does_not_wait_for_the_answers_of_another(
    server: Held, client: Dialogue, other: Dialogue
) -> None:
    client.line.send(declare("a") + method("basic.qos", prefetch_count=1))
    other.line.send(method("queue.declare", queue="b") + method("basic.qos", prefetch_count=1))
    assert (client.hear(), other.hear()) == ([], ["queue.declare-ok", "basic.qos-ok"])
    other.line.send(declare("c"))
    server.commit()
    assert (client.hear(), other.hear()) == (["queue.declare-ok", "basic.qos-ok"], ["queue.declare-ok"])


def test_deliveries_and_confirms_are_sent_during_a_held_reply(server: Held, client: Dialogue, other: Dialogue) -> None:
    client.line.send(method("queue.declare", queue="q"))
    client.line.send(method("basic.consume", queue="q", consumer_tag="c", no_ack=True))
    client.line.send(declare("durable"))
    other.publish(b"1", "q")
    assert client.hear() == ["queue.declare-ok", "basic.consume-ok", "basic.deliver"]
    server.commit()
    assert client.hear() == ["queue.declare-ok"]


def test_delete_ok_precedes_the_cancel_of_the_own_consumer(server: Held) -> None:
    client = Dialogue(server).open({"consumer_cancel_notify": True})
    prepare(server, client)
    client.line.send(method("basic.consume", queue="q", consumer_tag="c", no_ack=True))
    server.commit()
    client.hear()
    client.line.send(method("queue.delete", queue="q"))
    server.commit()
    assert client.hear() == ["queue.delete-ok", "basic.cancel"]


def test_a_refusal_behind_a_held_answer_comes_behind_it(server: Held, client: Dialogue) -> None:
    client.line.send(declare("q") + method("queue.declare", queue="none", passive=True) + method("basic.qos"))
    assert client.hear() == []
    server.commit()
    assert client.hear() == ["queue.declare-ok", "channel.close"]


def test_a_broken_frame_behind_a_held_answer_closes_the_connection_after_it(server: Held, client: Dialogue) -> None:
    client.line.send(declare("q") + b"\x09 this is no frame at all \xce")
    assert client.hear() == []
    server.commit()
    assert client.hear() == ["queue.declare-ok", "connection.close"]


def test_blocked_and_held_client_resumes_when_neither_applies() -> None:
    server = Held(ServerOptions(memory_limit=100_000))
    client, other = Dialogue(server).open(), Dialogue(server).open()
    big = pack_publish(1, b"x" * 100_000, None, routing_key="q")
    client.line.send(method("queue.declare", queue="q") + big)
    client.line.send(big + declare("durable") + method("basic.qos"))
    assert client.hear() == ["queue.declare-ok"]
    other.line.send(method("queue.purge", queue="q"))
    assert not client.line.is_reading
    server.commit()
    assert client.hear() == ["queue.declare-ok", "basic.qos-ok"]
    assert client.line.is_reading
    client.line.send(big)
    client.line.send(big + method("queue.delete", queue="durable") + method("basic.qos"))
    server.commit()
    assert client.hear() == ["queue.delete-ok", "basic.qos-ok"]
    assert not client.line.is_reading
    other.line.send(method("queue.purge", queue="q"))
    assert client.line.is_reading


# -- the end of a connection with a held answer


def test_close_after_a_held_reply_waits_for_it(server: Held, client: Dialogue) -> None:
    client.line.send(declare("q") + method("connection.close", 0))
    assert client.hear() == []
    server.commit()
    assert client.hear() == ["queue.declare-ok", "connection.close-ok"]


def test_disconnect_drops_the_held_reply(server: Held, client: Dialogue, other: Dialogue) -> None:
    client.line.send(declare("a") + declare("b"))
    client.line.hang_up()
    assert not server.broker.pending_replies
    server.commit()
    assert "b" not in server.broker.vhosts["/"].queues
    other.line.send(declare("a"))
    assert other.hear() == ["queue.declare-ok"]


def test_disconnect_before_the_end_of_the_turn_drops_the_held_reply(server: Held, client: Dialogue) -> None:
    client.line.send(declare("a"), ends_turn=False)
    client.line.hang_up()
    server.commit()
    assert not server.broker.pending_replies


def test_a_shutdown_does_not_wait_for_held_answers(server: Held, client: Dialogue) -> None:
    client.line.send(declare("a") + declare("b"))
    client.line.connection.shut_down()
    assert client.hear() == ["connection.close"]
    assert client.line.is_reading
    client.say("connection.close-ok")
    client.line.receive()
    assert client.line.is_closed
    server.commit()
    assert "b" not in server.broker.vhosts["/"].queues


def test_close_after_a_held_reply_is_answered_at_shutdown(server: Held, client: Dialogue) -> None:
    client.line.send(declare("a") + method("connection.close", 0))
    client.line.connection.shut_down()
    assert client.hear() == ["connection.close", "connection.close-ok"]


def test_an_internal_error_in_a_held_answer_costs_only_its_connection(
    server: Held, client: Dialogue, other: Dialogue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    client.line.connection.hold_reply()
    client.line.connection.session.resume_when(WRITTEN, fail)
    other.line.send(declare("q"))
    server.commit()
    assert client.hear() == ["connection.close"]
    assert other.hear() == ["queue.declare-ok"]
    assert "a bug" in caplog.text


# -- with sockets and files


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, event_loop_factory()])
def test_pipelined_methods_are_answered_in_order_on_a_real_socket(
    tmp_path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    def talk(address: Address) -> list[str]:
        with WireConnection(address).open() as connection:
            connection.channel()
            frames = method("confirm.select")
            for number in range(50):
                frames += declare(f"q{number}") + persistent(b"x" * 5000, f"q{number}")
                frames += method("queue.declare", queue=f"q{number}", passive=True)
            connection.send_bytes(frames + method("queue.purge", queue="q0") + method("channel.close"))
            heard: list[Method] = []
            while not heard or heard[-1].name != "channel.close-ok":
                heard.append(connection.read(1))
        confirmed = [answer["delivery_tag"] for answer in heard if answer.name == "basic.ack"]
        assert confirmed == sorted(confirmed)
        declared = [answer["queue"] for answer in heard if answer.name == "queue.declare-ok"]
        assert declared == [f"q{number}" for number in range(50) for _ in range(2)]
        return [answer.name for answer in heard if answer.name != "basic.ack"]

    async def serve() -> list[str]:
        node = Node(NodeOptions(port=0, http_port=None, data_dir=tmp_path))
        await node.start()
        heard = await asyncio.to_thread(talk, Address.of_url(node.url))
        await node.stop()
        return heard

    with asyncio.Runner(loop_factory=make_loop) as runner:
        heard = runner.run(serve())
    assert heard == ["confirm.select-ok", *["queue.declare-ok"] * 100, "queue.purge-ok", "channel.close-ok"]


# -- time


def test_a_held_client_does_not_miss_heartbeats_and_gets_its_own(server: Held) -> None:
    client = Dialogue(server).open(heartbeat=10)
    client.line.send(declare("q"))
    for _ in range(20):
        client.line.pass_time(5)
    assert client.hear()[0] == "heartbeat"
    assert not client.line.is_closed
    server.commit()
    client.line.pass_time(15)
    assert client.hear()[0] == "queue.declare-ok"
    assert not client.line.is_closed
    client.line.pass_time(15)
    assert client.line.is_closed
