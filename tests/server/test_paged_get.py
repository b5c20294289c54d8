"""basic.get on a queue whose messages are paged out: the client waits for the page, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from tests.support.wire_format import METHOD, pack_frame, pack_method
from warrenmq.core.backlog import Backlog
from warrenmq.core.message import QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import MessageStore, PageSizes, Recovered
from warrenmq.storage.memory_store import MemoryStorage


class PagedStore(MessageStore):
    """Takes everything from memory, and returns it when the test says so."""

    def __init__(self) -> None:
        super().__init__(sizes=PageSizes(window=64, page=1, budget=1 << 30))
        self.entries: list[QueuedMessage] = []

    def open(self, backlog: Backlog) -> Recovered:
        self.backlog = backlog
        return Recovered([])

    def page_out(self, entries: list[QueuedMessage]) -> None:
        self.entries += entries

    def page_in(self) -> None:
        self.is_reading = True

    def forget_pages(self) -> None:
        self.entries.clear()

    def delete(self) -> None:
        self.entries.clear()

    def give(self, count: int, lost: int = 0) -> None:
        """The page that was asked for is here."""
        assert self.is_reading
        self.is_reading = False
        page, self.entries = self.entries[lost : lost + count], self.entries[lost + count :]
        self.backlog.add_page(page, lost)


class PagedStorage(MemoryStorage):
    """Every queue is paged."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[str, PagedStore] = {}

    def message_store(  # type: ignore[override]
        self, vhost: str, queue: str, options: QueueOptions, level: int = 0
    ) -> PagedStore:
        store = self.stores[queue] = PagedStore()
        return store


@pytest.fixture
def storage() -> PagedStorage:
    return PagedStorage()


@pytest.fixture
def server(storage: PagedStorage) -> SocketlessServer:
    return SocketlessServer(storage=storage)


@pytest.fixture
def client(server: SocketlessServer) -> Dialogue:
    return Dialogue(server).open()


@pytest.fixture
def other(server: SocketlessServer) -> Dialogue:
    return Dialogue(server).open()


@pytest.fixture
def store(server: SocketlessServer, storage: PagedStorage, other: Dialogue) -> PagedStore:
    """A queue of nine messages, none of which is in memory."""
    other.say("queue.declare", 1, queue="q")
    for number in range(1, 10):
        other.publish(b"%d" % number, "q")
    queue = server.broker.vhosts["/"].queues["q"]
    while not queue.needs_page():
        other.say("basic.get", 1, queue="q", no_ack=True)
    other.hear()
    store = storage.stores["q"]
    assert store.entries
    return store


def method(name: str, **arguments: Any) -> bytes:
    return pack_frame(METHOD, 1, pack_method(name, **arguments))


GET = method("basic.get", queue="q", no_ack=True)


def first_body(store: PagedStore) -> bytes:
    return store.entries[0].message.body


def test_the_client_waits_for_the_page_and_its_next_methods_with_it(client: Dialogue, store: PagedStore) -> None:
    expected = first_body(store)
    client.line.send(GET + method("basic.qos"))
    assert client.hear() == []
    assert not client.line.is_reading
    store.give(3)
    frames = client.frames()
    assert [frame.payload for frame in frames if frame.kind == 3] == [expected]
    assert len(frames) == 4  # get-ok in three frames, then qos-ok
    assert client.line.is_reading


def test_other_clients_do_not_wait(server: SocketlessServer, client: Dialogue, store: PagedStore) -> None:
    client.line.send(GET)
    bystander = Dialogue(server).open()
    bystander.say("basic.qos", 1)
    assert bystander.hear() == ["basic.qos-ok"]


def test_a_page_that_others_have_emptied_is_followed_by_the_next(
    client: Dialogue, other: Dialogue, store: PagedStore
) -> None:
    client.line.send(GET)
    other.line.send(method("basic.consume", queue="q", consumer_tag="c", no_ack=True))
    store.give(1)
    assert client.hear() == []
    other.line.send(method("basic.cancel", consumer_tag="c"))
    expected = first_body(store)
    store.give(1)
    assert client.bodies() == [expected]


def test_several_clients_wait_for_the_same_page(client: Dialogue, other: Dialogue, store: PagedStore) -> None:
    first, second = (entry.message.body for entry in store.entries[:2])
    client.line.send(GET)
    other.line.send(GET)
    store.give(2)
    assert (client.bodies(), other.bodies()) == ([first], [second])


def test_a_page_that_could_not_be_read_leaves_the_queue_empty(client: Dialogue, store: PagedStore) -> None:
    client.line.send(GET)
    store.give(0, lost=len(store.entries))
    assert client.hear() == ["basic.get-empty"]


def test_a_queue_that_is_deleted_meanwhile_is_not_found(client: Dialogue, other: Dialogue, store: PagedStore) -> None:
    client.line.send(GET + method("basic.qos"))
    # Behind the delete there is more in the same buffer: the waiting client must not be served in the middle of it.
    other.line.send(method("queue.delete", queue="q") + method("basic.qos"))
    assert other.hear() == ["queue.delete-ok", "basic.qos-ok"]
    (close,) = client.methods()
    assert (close.name, close["reply_code"]) == ("channel.close", 404)


def test_a_client_that_hangs_up_meanwhile_is_forgotten(client: Dialogue, store: PagedStore) -> None:
    client.line.send(GET)
    client.line.hang_up()
    count = len(store.entries)
    store.give(3)
    assert len(store.backlog) == count


def test_a_shutdown_does_not_wait_for_the_page(client: Dialogue, store: PagedStore) -> None:
    client.line.send(GET + method("basic.qos"))
    client.line.connection.shut_down()
    assert client.hear() == ["connection.close"]
    store.give(3)
    assert client.hear() == []
    client.say("connection.close-ok")
    client.line.receive()
    assert client.line.is_closed


def test_a_queue_that_is_purged_meanwhile_is_empty(client: Dialogue, other: Dialogue, store: PagedStore) -> None:
    client.line.send(GET)
    other.line.send(method("queue.purge", queue="q"))
    assert client.hear() == ["basic.get-empty"]
