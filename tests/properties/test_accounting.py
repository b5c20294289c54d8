"""Whatever clients do, the broker's sums are those of what is really there, and nothing is left at the end.

Wider than the queue model and less exact: several connections, transactions, confirms, exclusive and auto-delete
queues, replies, exchanges, and durable work of which some is never heard of again. Only sums are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker
from tests.support.outbox import Confirmed
from tests.support.storage import ManualStorage
from warrenmq.core.broker import Broker
from warrenmq.core.errors import BrokerError
from warrenmq.core.message import MESSAGE_OVERHEAD, QueuedMessage
from warrenmq.core.queue import Queue

NAMES = ("plain", "durable", "automatic", "exclusive")
LIVES = (
    "publish", "publish", "publish to all", "publish to all", "consume", "consume without acks",
    "get", "get", "get without ack", "ack", "ack", "ack up to", "reject", "requeue", "requeue", "requeue all",
    "limit consumers", "limit channel",
    "commit", "rollback", "ask", "answer", "bind", "end turn", "end turn", "make durable", "congest", "drain", "end",
)  # fmt: skip
ENDS = (
    "recover", "cancel", "unbind", "purge", "delete",
    "close channel", "close channel", "close connection", "select", "confirm",
)  # fmt: skip


class World:
    """A broker, two connections with two channels each, and a way to do things by their name."""

    def __init__(self) -> None:
        self.storage = ManualStorage()
        self.broker = make_broker(self.storage)
        self.vhost = self.broker.vhosts["/"]
        self.clients = [Client(self.broker), Client(self.broker)]
        self.consumed = 0
        self.channels = [self._open(client, place) for place, client in enumerate(self.clients * 2)]
        for name in NAMES:
            self.channels[0].bind("amq.fanout", self._queue(self.channels[0], name))

    def do(self, step: str, who: int, which: int, number: int) -> None:
        """Do one thing; what the broker refuses closes the channel, as its edge does."""
        if step == "end":  # one step of many, so that most of a run is spent on what lives
            step = ENDS[number % len(ENDS)]
        channel = self.channels[who]
        try:
            self._do(step, channel, NAMES[which], number)
        except BrokerError:
            self._close(channel)

    def _do(self, step: str, channel: ClientChannel, name: str, number: int) -> None:
        core = channel.core
        mode = PERSISTENT if number % 2 else 1
        actions: dict[str, Callable[[], Any]] = {
            "publish": lambda: channel.publish(b"x" * number, name, delivery_mode=mode, mandatory=number % 3 == 0),
            "publish to all": lambda: channel.publish(b"x" * number, "", "amq.fanout", delivery_mode=mode),
            "consume": lambda: self._consume(channel, name, no_ack=False),
            "consume without acks": lambda: self._consume(channel, name, no_ack=True),
            "get": lambda: channel.get(self._queue(channel, name), no_ack=False),
            "get without ack": lambda: channel.get(self._queue(channel, name), no_ack=True),
            "ack": lambda: channel.ack(self._tag(channel, number)),
            "ack up to": lambda: channel.ack(self._tag(channel, number), multiple=True),
            "reject": lambda: channel.reject(self._tag(channel, number), requeue=False),
            "requeue": lambda: channel.reject(self._tag(channel, number)),
            "requeue all": lambda: channel.reject(0, multiple=True),
            "recover": core.recover,
            "cancel": lambda: core.cancel(next(iter(core.consumers), "nobody")),
            "limit consumers": lambda: core.limit_prefetch(number % 4, False),
            "limit channel": lambda: core.limit_prefetch(number % 4, True),
            "select": core.select_transactions,
            "commit": core.commit,
            "rollback": core.rollback,
            "confirm": core.select_confirms,
            "ask": lambda: channel.start_replies(f"replies {number}") if core.reply_queue is None else None,
            "answer": lambda: channel.publish(b"!", next(iter(self.broker.reply_queues), "nobody")),
            "bind": lambda: channel.bind("amq.fanout", self._queue(channel, name)),
            "unbind": lambda: channel.unbind("amq.fanout", self._queue(channel, name)),
            "purge": lambda: self._queue(channel, name).purge(),
            "delete": lambda: self.vhost.delete_queue(name, channel.client.connection, False, False),
            "close channel": lambda: self._close(channel),
            "close connection": lambda: self._disconnect(channel.client),
            "end turn": self.broker.end_turn,
            "make durable": lambda: self._make_durable(max(0, self.storage.log.epoch - number % 2)),
            "congest": lambda: setattr(channel.client.outbox, "is_congested", True),
            "drain": channel.client.outbox.drain,
        }
        actions[step]()

    def _queue(self, channel: ClientChannel, name: str) -> Queue:
        return channel.declare(
            name, durable=name == "durable", auto_delete=name == "automatic", exclusive=name == "exclusive"
        )

    def _consume(self, channel: ClientChannel, name: str, no_ack: bool) -> None:
        self.consumed += 1
        channel.consume(self._queue(channel, name), f"consumer {self.consumed}", no_ack=no_ack)

    def _tag(self, channel: ClientChannel, number: int) -> int:
        """A tag that is out, where there is one; else one that is refused."""
        out = list(channel.core.ledger.unacked)
        return out[number % len(out)] if out else number

    def _open(self, client: Client, place: int) -> ClientChannel:
        """The first channel has transactions, the second and third confirms, the last neither."""
        channel = client.channel()
        if place == 0:
            channel.core.select_transactions()
        elif place < 3:
            channel.core.select_confirms()
        return channel

    def _close(self, channel: ClientChannel) -> None:
        channel.close()
        place = self.channels.index(channel)
        self.channels[place] = self._open(channel.client, place)

    def _disconnect(self, client: Client) -> None:
        client.close()
        fresh = Client(self.broker)
        self.clients.append(fresh)
        for place, channel in enumerate(self.channels):
            if channel.client is client:
                self.channels[place] = self._open(fresh, place)

    def end(self) -> None:
        """Everybody leaves, and what is left in the queues is purged."""
        for client in self.clients:
            client.close()
        for queue in self.vhost.queues.values():
            queue.purge()
        self.broker.end_turn()
        self._make_durable(self.storage.log.epoch)

    def _make_durable(self, epoch: int) -> None:
        self.storage.log.advance(epoch, epoch)


def held_entries(world: World) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
    """What really waits, and what is really unacked: in ledgers, or struck from them by an open transaction."""
    ready = [entry for queue in world.vhost.queues.values() for entry in queue.backlog]
    unacked: list[QueuedMessage] = []
    for channel in world.channels:
        unacked += channel.core.ledger.unacked.values()
        if channel.core.transaction is not None:
            unacked += [entry for _, entry in channel.core.transaction.held_deliveries()]
    return ready, unacked


def check_sums(world: World) -> None:
    stats = world.broker.stats
    ready, unacked = held_entries(world)
    assert (stats.ready, stats.unacked) == (len(ready), len(unacked))
    held = [*ready, *unacked]
    assert stats.held_bytes == sum(entry.message.footprint() for entry in held)
    messages = {id(entry.message): entry.message for entry in held}.values()
    once = sum(message.shared_size() for message in messages) + len(held) * MESSAGE_OVERHEAD
    assert stats.held_bytes - stats.shared_bytes == once
    assert stats.consumers == sum(len(queue.consumers) for queue in world.vhost.queues.values())
    for queue in world.vhost.queues.values():
        assert queue.unacked_count == len([entry for entry in unacked if entry.queue is queue])
        positions = [entry.position for entry in queue.backlog]
        assert positions == sorted(positions)
    for channel in world.channels:
        held = [entry for entry in unacked if entry.consumer in channel.core.consumers.values()]
        for consumer in channel.core.consumers.values():
            assert consumer.unacked == len([entry for entry in held if entry.consumer is consumer])


def check_confirms(clients: list[Client]) -> None:
    """On every channel each publish was confirmed at most once, in order."""
    for client in clients:
        last: dict[int, int] = {}
        for said in client.outbox.said:
            if isinstance(said, Confirmed):
                assert said.tag > last.get(said.channel, 0)
                assert said.multiple or said.tag == last.get(said.channel, 0) + 1
                last[said.channel] = said.tag


def check_nothing_is_left(broker: Broker) -> None:
    stats = broker.stats
    assert (stats.ready, stats.unacked, stats.held_bytes, stats.consumers) == (0, 0, 0, 0)
    assert (stats.shared_bytes, stats.uncommitted_bytes) == (0, 0)
    assert not broker.awaiting_epoch
    assert not broker.reply_queues


step = st.tuples(st.sampled_from(LIVES), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))


@settings(max_examples=150, deadline=None)
@given(st.lists(step, min_size=20, max_size=100))
def test_sums_hold_and_nothing_is_left(steps: list[tuple[str, int, int, int]]) -> None:
    world = World()
    for each in steps:
        world.do(*each)
        check_sums(world)
    world.end()
    check_nothing_is_left(world.broker)
    check_confirms(world.clients)
    assert "exclusive" not in world.vhost.queues
    assert world.storage.kept("durable") == ""
