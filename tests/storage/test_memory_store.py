"""Storage in memory: keeps messages and definitions for as long as it exists, and nothing else."""

from __future__ import annotations

from warrenmq.core.backlog import Backlog
from warrenmq.core.message import Message, QueuedMessage, address_of
from warrenmq.core.options import QueueOptions
from warrenmq.core.stats import Stats
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.memory_store import MemoryCatalog, MemoryLog, MemoryStorage

DURABLE = QueueOptions(is_durable=True)


def entry(position: int) -> QueuedMessage:
    body = b"%d" % position
    header = content_header(len(body), BasicProperties(delivery_mode=2))
    return QueuedMessage(Message(address_of("", "q"), header, body), position)


def kept(storage: MemoryStorage, vhost: str = "/") -> list[QueuedMessage]:
    store = storage.message_store(vhost, "q", DURABLE)
    return store.open(Backlog(Stats(), store)).entries


def test_messages_come_back_by_position_with_nothing_of_their_past() -> None:
    storage = MemoryStorage()
    store = storage.message_store("/", "q", DURABLE)
    first, second = entry(1), entry(2)
    first.redelivered = True
    first.consumer = first.queue = object()
    store.append(second)
    store.append(first)
    recovered = kept(storage)
    assert [(each.position, each.message.body) for each in recovered] == [(1, b"1"), (2, b"2")]
    assert recovered[0].message is first.message
    assert (recovered[0].redelivered, recovered[0].queue, recovered[0].consumer) == (False, None, None)


def test_a_forgotten_message_does_not_come_back() -> None:
    storage = MemoryStorage()
    store = storage.message_store("/", "q", DURABLE)
    for position in range(3):
        store.append(entry(position))
    store.forget(entry(1))
    store.forget(entry(1))
    assert [each.position for each in kept(storage)] == [0, 2]


def test_a_deleted_queue_has_nothing_left() -> None:
    storage = MemoryStorage()
    storage.message_store("/", "q", DURABLE).append(entry(0))
    storage.message_store("/", "q", DURABLE).delete()
    assert kept(storage) == []


def test_a_stream_declared_again_starts_empty() -> None:
    storage = MemoryStorage()
    for body in (b"first", b"second"):
        store = storage.stream_store("/", "s", DURABLE)
        assert store.first_position == 0
        header = content_header(len(body), BasicProperties())
        store.append(QueuedMessage(Message(address_of("", "s"), header, body), 0))
        read: list[bytes] = []
        store.read(0, lambda first, messages, read=read: read.extend(each.body for each in messages))  # type: ignore[misc]
        assert read == [body]
        store.delete()


def test_queues_of_one_name_in_two_virtual_hosts_do_not_meet() -> None:
    storage = MemoryStorage()
    storage.message_store("/", "q", DURABLE).append(entry(0))
    assert kept(storage, "a") == []


def test_definitions_come_back_by_kind_in_the_order_they_were_saved() -> None:
    catalog = MemoryCatalog()
    catalog.save("queue", ("/", "b"), {"name": "b"})
    catalog.save("queue", ("/", "a"), {"name": "a"})
    catalog.save("exchange", ("/", "x"), {"name": "x"})
    assert list(catalog.load("queue")) == [{"name": "b"}, {"name": "a"}]
    assert list(catalog.load("exchange")) == [{"name": "x"}]
    assert list(catalog.load("binding")) == []


def test_a_definition_saved_again_replaces_the_old_one() -> None:
    catalog = MemoryCatalog()
    catalog.save("queue", ("/", "a"), {"name": "a", "arguments": {}})
    catalog.save("queue", ("/", "a"), {"name": "a", "arguments": {"x": 1}})
    assert list(catalog.load("queue")) == [{"name": "a", "arguments": {"x": 1}}]


def test_a_deleted_definition_is_gone_and_deleting_nothing_is_fine() -> None:
    catalog = MemoryCatalog()
    catalog.save("queue", ("/", "a"), {"name": "a"})
    catalog.delete("queue", ("/", "a"))
    catalog.delete("queue", ("/", "a"))
    catalog.delete("binding", ("/", "a"))
    assert list(catalog.load("queue")) == []


def test_everything_is_durable_at_once() -> None:
    assert MemoryLog().end_turn() == 0
