"""Memory used on behalf of clients is counted by kind, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, make_broker
from warrenmq.core.broker import Broker
from warrenmq.core.errors import ContentTooLarge
from warrenmq.core.message import MESSAGE_OVERHEAD
from warrenmq.core.snapshot import memory
from warrenmq.storage.memory_store import MemoryStorage

LONG = {f"x-name-{number}": ["a value", {"of": "some length" * 10}] for number in range(100)}
SIZE = 1000


def grown(broker: Broker, before: dict[str, int]) -> dict[str, int]:
    """What changed, by kind; the sum is what the alarm judges."""
    after = memory(broker)
    assert sum(after.values()) == broker.stats.memory()
    return {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}


@pytest.mark.parametrize("what", ["queue", "durable queue", "exchange", "binding", "consumer", "channel", "connection"])
def test_a_definition_is_counted_while_it_exists(broker: Broker, channel: ClientChannel, what: str) -> None:
    vhost = channel.vhost
    queue = channel.declare("q")
    before = memory(broker)
    if what.endswith("queue"):
        new = channel.declare("new", durable=what == "durable queue")
    elif what == "exchange":
        channel.declare_exchange("new")
    elif what == "binding":
        channel.bind("amq.topic", queue, "#")
    elif what == "consumer":
        channel.consume(queue, "tag")
    elif what == "channel":
        other = channel.client.channel()
    else:
        client = Client(broker)
        client.channel()
    assert grown(broker, before).keys() == {"definitions"}
    assert grown(broker, before)["definitions"] > 0
    if what.endswith("queue"):
        channel.delete(new)
    elif what == "exchange":
        vhost.delete_exchange("new", False)
    elif what == "binding":
        channel.unbind("amq.topic", queue, "#")
    elif what == "consumer":
        channel.core.cancel("tag")
    elif what == "channel":
        other.close()
    else:
        client.close()
    assert grown(broker, before) == {}


@pytest.mark.parametrize("what", ["queue", "exchange", "binding", "consumer"])
def test_long_arguments_are_counted(broker: Broker, channel: ClientChannel, what: str) -> None:
    queue = channel.declare("q")
    before = memory(broker)
    if what == "queue":
        channel.declare("new", arguments=LONG)
    elif what == "exchange":
        channel.vhost.declare_exchange("new", "direct", False, False, False, LONG)
    elif what == "binding":
        channel.bind("amq.topic", queue, "#", **LONG)
    else:
        core = channel.core
        core.start(core.consume(queue, "tag", True, False, 0, LONG))
    assert grown(broker, before)["definitions"] > 30_000


def test_all_that_is_in_a_queue_goes_with_it(broker: Broker, channel: ClientChannel) -> None:
    before = memory(broker)
    queue = channel.declare("q")
    channel.bind("amq.topic", queue, "#")
    channel.consume(queue, "tag")
    for number in range(10):
        channel.publish(b"x" * SIZE, f"key.{number}", "amq.topic")
    channel.delete(queue)
    broker.end_turn()
    channel.close()
    channel.client.close()
    after = grown(broker, before)
    assert after.pop("definitions") < 0  # the channel, too
    assert after == {}


def test_definitions_that_were_kept_are_counted_after_a_restart() -> None:
    storage = MemoryStorage()
    channel = Client(make_broker(storage)).channel()
    queue = channel.declare("q", durable=True)
    channel.declare_exchange("e", durable=True)
    channel.bind("e", queue, "key")
    channel.client.close()
    definitions = memory(channel.vhost.broker)["definitions"]
    assert memory(make_broker(storage))["definitions"] == definitions


def test_waiting_and_unacked_messages_are_counted_separately(broker: Broker, channel: ClientChannel) -> None:
    queue = channel.declare("q")
    before = memory(broker)
    for _ in range(10):
        channel.publish(b"x" * SIZE, "q")
    found = grown(broker, before)
    footprint = found["messages"] // 10
    assert found == {"messages": 10 * footprint}
    assert SIZE + MESSAGE_OVERHEAD < footprint < SIZE + MESSAGE_OVERHEAD + 100
    for _ in range(4):
        channel.get(queue, no_ack=False)
    found = grown(broker, before)
    assert (found["messages"], found["unacked"]) == (6 * footprint, 4 * footprint)


def test_a_message_in_many_queues_is_counted_once(broker: Broker, channel: ClientChannel) -> None:
    queues = [channel.declare(f"q{number}") for number in range(10)]
    for queue in queues:
        channel.bind("amq.fanout", queue, "")
    before = memory(broker)
    channel.publish(b"x" * SIZE, "", "amq.fanout")
    assert SIZE + 10 * MESSAGE_OVERHEAD < grown(broker, before)["messages"] < SIZE + 10 * MESSAGE_OVERHEAD + 100
    for queue in queues[:5]:
        channel.get(queue, no_ack=False)
    found = grown(broker, before)
    assert abs(found["messages"] - found["unacked"]) <= 1
    for queue in queues[5:9]:
        queue.purge()
    for tag in range(1, 6):
        channel.ack(tag)
    assert SIZE + MESSAGE_OVERHEAD < grown(broker, before)["messages"] < SIZE + MESSAGE_OVERHEAD + 100
    queues[9].purge()
    assert grown(broker, before) == {}


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_transaction_is_counted_until_it_ends(broker: Broker, channel: ClientChannel, end: str) -> None:
    channel.declare("q")
    channel.core.select_transactions()
    before = memory(broker)
    for _ in range(10):
        channel.publish(b"x" * SIZE, "q")
    found = grown(broker, before)
    assert found.keys() == {"transactions"}
    assert 10 * SIZE < found["transactions"] < 15 * SIZE
    held = found["transactions"]
    if end == "commit":
        channel.core.commit()
    elif end == "rollback":
        channel.core.rollback()
    else:
        channel.close()
    found = grown(broker, before)
    assert "transactions" not in found
    assert found.get("messages", 0) == (held if end == "commit" else 0)


@pytest.mark.parametrize("headers", [{}, {"CC": ["q"]}])
def test_a_transaction_is_refused_when_unfinished_work_takes_too_much(
    broker: Broker, channel: ClientChannel, headers: dict[str, Any]
) -> None:
    broker.stats.unfinished_limit = 10 * SIZE
    broker.stats.transit_bytes = 5 * SIZE
    channel.declare("q")
    channel.core.select_transactions()

    def publish_many() -> None:
        for _ in range(10):
            channel.publish(b"x" * SIZE, "q", headers=headers)

    with pytest.raises(ContentTooLarge, match=r"uncommitted transactions hold [0-9]+ bytes, the limit is 10000"):
        publish_many()
    assert 0 < broker.stats.uncommitted_bytes <= 5 * SIZE
    channel.core.rollback()
    assert broker.stats.uncommitted_bytes == 0


@pytest.mark.parametrize("size", [0, 3])
def test_ids_that_deduplication_remembers_are_counted(broker: Broker, channel: ClientChannel, size: int) -> None:
    arguments = {"x-message-deduplication": True} | ({"x-cache-size": size} if size else {})
    queue = channel.declare("q", arguments=arguments)
    before = memory(broker)
    for number in range(10):
        channel.publish(b"", "q", headers={"x-deduplication-header": f"id {number}"})
    ids = grown(broker, before)["deduplication"]
    assert ids > 0
    queue.purge()
    assert grown(broker, before).get("deduplication", 0) == (ids if size else 0)
    channel.delete(queue)
    assert "deduplication" not in grown(broker, before)


def test_a_long_header_is_not_kept_by_its_channel(channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish(b"", "q", headers={"long": "x" * 100_000})
    assert channel.core.shared_header == b""
    channel.publish(b"", "q", headers={"short": "x"})
    assert channel.core.shared_header != b""
