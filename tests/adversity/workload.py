"""Workloads of a broker as data: steps that are possible in any state, applied to the real storage and to a model.

A step is a word and two numbers, so that hypothesis can generate, shrink and print workloads. `Workload` applies each
to a `Life` (the real broker and storage, driven by hand) and to a `World` (the model). After every step it records in
the history which state a restart must restore from now on, and which states were promised.

After a crash, the recovered state must be that after some step: none before the last promised one, and no mixture.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.properties.storage_model import ModelMessage, ModelQueue, State, World
from tests.support.client import PERSISTENT, ClientChannel
from tests.support.crash import Crash, History
from tests.support.durable import FANOUT, Life

QUEUES = ("a", "b", "c")
STREAM = "s"
TRANSIENT = 1

Step = tuple[str, int, int]

# How often each kind of step comes.
_WEIGHTS = {
    "end turn": 8,
    "publish": 10,
    "publish many": 5,
    "fan out": 3,
    "stream": 5,
    "get and ack": 5,
    "get": 4,
    "ack": 3,
    "ack all": 1,
    "requeue": 2,
    "drop": 1,
    "transaction": 4,
    "purge": 1,
    "delete": 1,
    "declare": 2,
    "bind": 1,
    "unbind": 1,
    "commit": 10,
    "page": 8,
    "apply": 3,
    "settle": 2,
}
_KINDS = [kind for kind, weight in _WEIGHTS.items() for _ in range(weight)]

steps = st.tuples(st.sampled_from(_KINDS), st.integers(0, 99), st.integers(0, 99))
histories = st.lists(steps, min_size=20, max_size=80)


def any_step(choice: random.Random) -> Step:
    return choice.choice(_KINDS), choice.randrange(100), choice.randrange(100)


@dataclass
class Delivery:
    """An unacked message: where it came from, and how the channel calls it."""

    queue: str
    message: ModelMessage
    tag: int


@dataclass
class Workload:
    """One run of the broker."""

    life: Life
    world: World
    history: History
    held: list[Delivery] = field(default_factory=list)
    _published: int = 0
    _first: int = 0  # the number of the first state of this run
    _work: int = 0
    _epochs: list[int] = field(default_factory=list)  # of each state, the epoch that its last work lies in

    def begin(self) -> None:
        """The broker is up: clients see the first state, so it must be durable. Listen to the log from now on."""
        self._first = sum(fact[0] == "state" for _, fact in self.history.facts)
        self.life.on_durable = self._hear_durable
        self._work = self.life.storage.log.work
        self._epochs.append(0)
        self.history.record(("state", self.world.durable()))
        self.history.record(("promised", self._first))

    def do(self, step: Step) -> None:
        kind, pick, size = step
        action: Callable[[int, int], None] = getattr(self, "_" + kind.replace(" ", "_"))
        action(pick, size)
        assert self.life.failure is None, self.life.failure
        self.note_state()

    def note_state(self) -> None:
        """Record what a restart must restore from now on, or an earlier state."""
        log = self.life.storage.log
        self._epochs.append(log.last if log.work > self._work else self._epochs[-1])
        self._work = log.work
        self.history.record(("state", self.world.durable()))
        self._hear_durable(log.durable)

    def stop(self) -> None:
        """In order: everything is promised."""
        self.life.stop()
        assert self.life.failure is None, self.life.failure
        self.note_state()

    def _hear_durable(self, epoch: int) -> None:
        """All steps up to this epoch are promised from now on."""
        promised = max(number for number, lies_in in enumerate(self._epochs) if lies_in <= epoch)
        self.history.record(("promised", self._first + promised))

    # -- messages ----------------------------------------------------------------------------------------------------

    def _publish(self, pick: int, size: int) -> None:
        self._publish_to([QUEUES[pick % 3]], size, is_persistent=pick % 5 != 0)

    def _publish_many(self, pick: int, size: int) -> None:
        """Enough to be paged out. One step is one call to the core, so these are several."""
        for _ in range(5):
            self._publish(pick, size)
            self.note_state()

    def _fan_out(self, pick: int, size: int) -> None:
        self._publish_to(sorted(self.world.bound), size, is_persistent=pick % 5 != 0, exchange=FANOUT)

    def _stream(self, pick: int, size: int) -> None:
        for _ in range(1 + pick % 4):
            self._publish_to([STREAM], size, is_persistent=pick % 5 != 0)
            self.note_state()

    def _publish_to(self, names: list[str], size: int, is_persistent: bool, exchange: str = "") -> None:
        body = self._next_body(size)
        self.world.publish(names, body, is_persistent)
        mode = PERSISTENT if is_persistent else TRANSIENT
        self.life.publisher.publish(body, "" if exchange else names[0], exchange, delivery_mode=mode)

    def _get(self, pick: int, size: int) -> None:
        name = QUEUES[pick % 3]
        queue = self.world.queues.get(name)
        if queue is not None:
            message, got = queue.take(), self.life.get(name)
            assert (got and got.body) == (message and message.body), f"{name}: {got} came instead of {message}"
            if got is not None and message is not None:
                self.held.append(Delivery(name, message, got.tag))

    def _get_and_ack(self, pick: int, size: int) -> None:
        before = len(self.held)
        self._get(pick, size)
        if len(self.held) > before:
            self._settle_one(self.held.pop())

    def _ack(self, pick: int, size: int) -> None:
        if self.held:
            self._settle_one(self.held.pop(pick % len(self.held)))

    def _settle_one(self, delivery: Delivery) -> None:
        self._channel.ack(delivery.tag)
        self._channel.core.commit()
        self._forget(delivery)

    def _ack_all(self, pick: int, size: int) -> None:
        self._channel.ack(0, multiple=True)
        self._channel.core.commit()
        while self.held:
            self._forget(self.held.pop())

    def _drop(self, pick: int, size: int) -> None:
        if self.held:
            delivery = self.held.pop(pick % len(self.held))
            self._channel.reject(delivery.tag, requeue=False)
            self._channel.core.commit()
            self._forget(delivery)

    def _requeue(self, pick: int, size: int) -> None:
        if self.held:
            delivery = self.held.pop(pick % len(self.held))
            self._channel.reject(delivery.tag, requeue=True)
            self._channel.core.commit()
            if delivery.queue in self.world.queues:
                self.world.queues[delivery.queue].put_back(delivery.message)

    def _forget(self, delivery: Delivery) -> None:
        if delivery.queue in self.world.queues:
            self.world.queues[delivery.queue].settle(delivery.message)

    def _transaction(self, pick: int, size: int) -> None:
        """Publishes to several queues and acks, committed in one call; or rolled back."""
        is_commit = pick % 4 != 0
        count = min(len(self.held), size % 3)
        acked = self.held[len(self.held) - count :]
        for delivery in acked:
            self._channel.ack(delivery.tag)
        for number in range(1 + pick % 5):
            name, body = QUEUES[(pick + number) % 3], self._next_body(size)
            self._channel.publish(body, name, delivery_mode=PERSISTENT)
            if is_commit:
                self.world.publish([name], body, True)
        if is_commit:
            self._channel.core.commit()
            del self.held[len(self.held) - count :]
            for delivery in acked:
                self._forget(delivery)
        else:
            self._channel.core.rollback()

    def _purge(self, pick: int, size: int) -> None:
        name = QUEUES[pick % 3]
        if name in self.world.queues:
            dropped = self.life.queue(name).purge()
            assert dropped == self.world.queues[name].purge()

    # -- definitions -------------------------------------------------------------------------------------------------

    def _delete(self, pick: int, size: int) -> None:
        name = QUEUES[pick % 3]
        if name in self.world.queues:
            self._channel.delete(self.life.queue(name))
            self.world.delete(name)
            for delivery in [each for each in self.held if each.queue == name]:
                self.held.remove(delivery)
                self._settle_one(delivery)

    def _declare(self, pick: int, size: int) -> None:
        """One of those that are missing."""
        missing = [name for name in QUEUES if name not in self.world.queues]
        if missing:
            self.declare(missing[pick % len(missing)])

    def declare(self, name: str) -> None:
        is_stream = name == STREAM
        self._channel.declare(name, durable=True, arguments={"x-queue-type": "stream"} if is_stream else {})
        self.world.queues[name] = ModelQueue(is_stream=is_stream)

    def _bind(self, pick: int, size: int) -> None:
        name = (*QUEUES, STREAM)[pick % 4]
        if name in self.world.queues:
            self._channel.bind(FANOUT, self.life.queue(name))
            self.world.bound.add(name)

    def _unbind(self, pick: int, size: int) -> None:
        name = (*QUEUES, STREAM)[pick % 4]
        if name in self.world.queues:
            self._channel.unbind(FANOUT, self.life.queue(name))
            self.world.bound.discard(name)

    # -- the loop and the threads ------------------------------------------------------------------------------------

    def _end_turn(self, pick: int, size: int) -> None:
        self.life.end_turn()

    def _commit(self, pick: int, size: int) -> None:
        self.life.commit_one(is_heard=pick % 3 != 0)

    def _page(self, pick: int, size: int) -> None:
        for _ in range(1 + pick % 3):
            self.life.page_one()

    def _apply(self, pick: int, size: int) -> None:
        self.life.apply_one()

    def _settle(self, pick: int, size: int) -> None:
        self.life.settle()

    # -- small things ------------------------------------------------------------------------------------------------

    @property
    def _channel(self) -> ClientChannel:
        return self.life.channel

    def _next_body(self, size: int) -> bytes:
        self._published += 1
        return b"%d.%d:" % (self.life.number, self._published) + b"x" * (size * size // 10)


def judge(crash: Crash, found: State) -> str | None:
    """What is wrong with a state that was recovered after the crash, if anything is."""
    states = [fact[1] for fact in crash.facts if fact[0] == "state"]
    promised = max((fact[1] for fact in crash.facts if fact[0] == "promised"), default=0)
    if found in states[promised:]:
        return None
    if found in states:
        late = max(number for number, state in enumerate(states) if state == found)
        return f"set back to step {late}, but {promised} was promised"
    named = [_names(state) for state in (found, states[promised], states[-1])]
    return "no state that ever was:\n  found    {}\n  promised {}\n  last     {}".format(*named)


def _names(state: State) -> str:
    """The state without what makes the messages long."""
    queues = ((name, b" ".join(body.partition(b":")[0] for body in bodies).decode()) for name, bodies in state[0])
    return " ".join(f"{name}[{bodies}]" for name, bodies in queues) + f" bound {','.join(state[1])}"
