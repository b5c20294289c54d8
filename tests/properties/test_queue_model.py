"""Random lives of queues and channels, compared with a plain model after every step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.properties.queue_model import Model, ModelChannel, ModelConsumer, ModelMessage, ModelQueue
from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker
from tests.support.outbox import Delivered
from tests.support.storage import ManualStorage
from warrenmq.core.message import MESSAGE_OVERHEAD
from warrenmq.core.peek import Peeked, PeekedMessage, Start, peek
from warrenmq.protocol.properties import BasicProperties, content_header

QUEUES = ("transient", "durable")

picks = st.integers(0, 1000)
prefetches = st.sampled_from([0, 1, 2, 3])


class QueuesAndChannels(RuleBasedStateMachine):
    """Every step is done to the broker and to the model; what the broker says is judged by the model."""

    @initialize()
    def begin(self) -> None:
        self.storage = ManualStorage()
        self.broker = make_broker(self.storage)
        self.client = Client(self.broker)
        self.model = Model()
        self.channels: dict[int, ClientChannel] = {}
        self.published = 0
        self.consumed = 0
        for _ in range(2):
            self._open_channel()
        for name in QUEUES:
            self._declare(name)

    # -- publishing and fetching

    @rule(name=st.sampled_from(QUEUES), is_persistent=st.booleans(), count=st.integers(1, 6), size=st.integers(0, 50))
    def publish(self, name: str, is_persistent: bool, count: int, size: int) -> None:
        queue = self.model.queues[name]
        for _ in range(count):
            self.published += 1
            message = ModelMessage(b"%d:%s" % (self.published, b"x" * size), is_persistent)
            queue.messages.append(message)
            queue.ready.append(message)
            self._any_channel().publish(message.body, name, delivery_mode=PERSISTENT if is_persistent else 1)
            self._hear()

    @rule(name=st.sampled_from(QUEUES), count=st.integers(1, 5), position=st.integers(0, 12))
    def peek(self, name: str, count: int, position: int) -> None:
        """What waits from this position on is shown; that nothing changes, the next steps show."""
        queue = self.model.queues[name]
        expected = [each for each in queue.ready if queue.messages.index(each) >= position]
        shown: list[PeekedMessage] = []
        start: Start | None = Start(position)
        while start is not None:
            answers: list[Peeked] = []
            peek(self.client.vhost.queues[name], start, count, 100, answers.append)
            (answer,) = answers
            assert len(answer.messages) <= count
            shown += answer.messages
            start = answer.next
        assert [(each.body, each.is_redelivered) for each in shown] == [
            (each.body, each.redelivered) for each in expected
        ]

    @rule(
        name=st.sampled_from(QUEUES), pick=picks, no_ack=st.sampled_from([False, False, True]), count=st.integers(1, 4)
    )
    def get(self, name: str, pick: int, no_ack: bool, count: int) -> None:
        number = self._pick_channel(pick)
        queue = self.model.queues[name]
        for _ in range(count):
            got = self.channels[number].get(self.client.vhost.queues[name], no_ack=no_ack)
            if got is None:
                assert queue.ready == []
            else:
                self.model.hear_get(got, queue, no_ack)

    # -- consuming

    @rule(
        name=st.sampled_from(QUEUES),
        pick=picks,
        no_ack=st.sampled_from([False, False, False, True]),
        prefetch=prefetches,
    )
    def consume(self, name: str, pick: int, no_ack: bool, prefetch: int) -> None:
        number = self._pick_channel(pick)
        self.consumed += 1
        tag = f"consumer {self.consumed}"
        channel = self.model.channels[number]
        channel.consumers[tag] = ModelConsumer(channel, self.model.queues[name], no_ack, 0 if no_ack else prefetch)
        self.channels[number].consume(self.client.vhost.queues[name], tag, no_ack=no_ack, prefetch=prefetch)
        self._hear()

    @rule(pick=picks, prefetch=prefetches)
    def limit_the_channel(self, pick: int, prefetch: int) -> None:
        number = self._pick_channel(pick)
        self.model.channels[number].prefetch = prefetch
        self.channels[number].core.limit_prefetch(prefetch, True)
        self._hear()

    # -- settling

    @rule(pick=picks, how=st.sampled_from(["one", "one", "up to", "all"]))
    def ack(self, pick: int, how: str) -> None:
        found = self._pick_delivery(pick, how)
        if found is not None:
            number, tag = found
            self.model.channels[number].take(tag, how != "one")
            self.channels[number].ack(tag, multiple=how != "one")
            self._hear()

    @rule(pick=picks, how=st.sampled_from(["one", "one", "up to", "all"]), requeue=st.sampled_from([True, True, False]))
    def reject(self, pick: int, how: str, requeue: bool) -> None:
        found = self._pick_delivery(pick, how)
        if found is not None:
            number, tag = found
            for out in self.model.channels[number].take(tag, how != "one"):
                if requeue:
                    out.queue.put_back(out.message)
            self.channels[number].reject(tag, multiple=how != "one", requeue=requeue)
            self._hear()

    @rule(picks=st.lists(picks, min_size=2, max_size=6))
    def requeue_some_one_by_one(self, picks: list[int]) -> None:
        for pick in picks:
            self.reject(pick, "one", True)

    # -- the turn, and a peer that reads slowly

    @rule()
    def end_the_turn(self) -> None:
        self.broker.end_turn()
        self._hear()
        assert self.model.hungry_consumers() == [], "a message waits, and a consumer for it"

    @rule(name=st.sampled_from(QUEUES))
    def read_slowly_for_a_while(self, name: str) -> None:
        self.model.is_congested = self.client.outbox.is_congested = True
        self.publish(name, True, 2, 0)
        self.end_the_turn()
        self.model.is_congested = False
        self.client.outbox.drain()
        self._hear()

    # -- the end of things: one rule, so that most of a run is spent on what lives

    @rule(
        what=st.sampled_from(["cancel", "cancel", "recover", "close", "purge", "delete"]),
        name=st.sampled_from(QUEUES),
        pick=picks,
    )
    def end_something(self, what: str, name: str, pick: int) -> None:
        number = self._pick_channel(pick)
        if what == "cancel":
            self._cancel(number, pick)
        elif what == "recover":
            self._recover(number)
        elif what == "close":
            self._close_channel(number)
        elif what == "purge":
            self._purge(name)
        else:
            self._delete(name)
        self._hear()

    def _cancel(self, number: int, pick: int) -> None:
        tags = list(self.model.channels[number].consumers)
        if tags:
            tag = tags[pick % len(tags)]
            del self.model.channels[number].consumers[tag]
            self.channels[number].core.cancel(tag)

    def _recover(self, number: int) -> None:
        for out in self.model.channels[number].take(0, True):
            out.queue.put_back(out.message)
        self.channels[number].core.recover()

    def _close_channel(self, number: int) -> None:
        """Open another one in its place."""
        for out in self.model.channels.pop(number).take(0, True):
            out.queue.put_back(out.message)
        self.channels.pop(number).close()
        self._open_channel()

    def _purge(self, name: str) -> None:
        queue = self.model.queues[name]
        assert self.client.vhost.queues[name].purge() == len(queue.ready)
        queue.ready.clear()

    def _delete(self, name: str) -> None:
        """Declare another one in its place; what is unacked of the old one belongs nowhere."""
        queue = self.model.queues[name]
        assert self._any_channel().delete(self.client.vhost.queues[name]) == len(queue.ready)
        queue.is_deleted = True
        queue.ready.clear()
        for channel in self.model.channels.values():
            for tag in [tag for tag, consumer in channel.consumers.items() if consumer.queue is queue]:
                del channel.consumers[tag]
        self._declare(name)

    # -- what always holds

    @invariant()
    def queues_hold_the_same_messages(self) -> None:
        for name, queue in getattr(self, "model", Model()).queues.items():
            real = self.client.vhost.queues[name]
            assert [(entry.message.body, entry.redelivered) for entry in real.backlog] == [
                (message.body, message.redelivered) for message in queue.ready
            ]
            assert real.unacked_count == len([out for out in self.model.unacked() if out.queue is queue])
            assert self.storage.kept(name) == b"".join(message.body for message in self.model.kept(queue)).decode()

    @invariant()
    def sums_are_right(self) -> None:
        if hasattr(self, "model"):
            held = self.model.held()
            stats = self.broker.stats
            assert stats.unacked == len(self.model.unacked())
            assert stats.ready == len(held) - stats.unacked
            assert stats.held_bytes == sum(_footprint(message) for message in held)
            assert stats.consumers == sum(len(channel.consumers) for channel in self.model.channels.values())

    def teardown(self) -> None:
        """Whatever happened before, nothing is left when everything is closed and purged."""
        if hasattr(self, "model"):
            self.client.close()
            for queue in self.client.vhost.queues.values():
                queue.purge()
            stats = self.broker.stats
            assert (stats.ready, stats.unacked, stats.held_bytes, stats.consumers) == (0, 0, 0, 0)

    # -- what the steps share

    def _hear(self) -> None:
        said, self.client.outbox.said = self.client.outbox.said, []
        for each in said:
            if isinstance(each, Delivered):
                self.model.hear(each)

    def _open_channel(self) -> None:
        channel = self.client.channel()
        self.channels[channel.number] = channel
        self.model.channels[channel.number] = ModelChannel()

    def _declare(self, name: str) -> None:
        self._any_channel().declare(name, durable=name == "durable")
        self.model.queues[name] = ModelQueue(is_durable=name == "durable")

    def _any_channel(self) -> ClientChannel:
        return next(iter(self.channels.values()))

    def _pick_channel(self, pick: int) -> int:
        return list(self.channels)[pick % len(self.channels)]

    def _pick_delivery(self, pick: int, how: str) -> tuple[int, int] | None:
        """A channel and a tag that is out on it (0: all), or None where nothing is."""
        out = [(number, tag) for number, channel in self.model.channels.items() for tag in channel.unacked]
        if not out:
            return None
        number, tag = out[pick % len(out)]
        return number, 0 if how == "all" else tag


def _footprint(message: ModelMessage) -> int:
    header = content_header(len(message.body), BasicProperties(delivery_mode=PERSISTENT))
    return len(message.body) + len(header) + MESSAGE_OVERHEAD


QueuesAndChannels.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestQueuesAndChannels = QueuesAndChannels.TestCase
