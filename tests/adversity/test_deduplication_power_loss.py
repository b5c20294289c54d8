"""Power loss at any moment in the life of a broker that drops duplicates, on a simulated disk.

What a start finds must be all queues and all that they and an exchange have seen as they were after one and the same
step, not before the last that was durable: an id without its message would drop one that was never kept, a message
without its id would let a second one in. The order of the ids counts, too: it decides which is forgotten first.

WARREN_TEST_EFFORT=20 tries twenty times as many.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.crash import Crash, History, effort
from tests.support.disk import RecordingFiles
from tests.support.durable import ROOT, TINY, Life
from warrenmq.core.deduplication import Deduplication
from warrenmq.core.digest import digest_of
from warrenmq.storage.options import StorageOptions

CRASHES = 4
STATES = 2
IDS = 40
SIZE = 25
ON = {"x-message-deduplication": True}
WINDOW = {**ON, "x-cache-size": SIZE}
QUEUES: dict[str, dict[str, Any]] = {
    "present": ON,
    "window": WINDOW,
    "stream": {**WINDOW, "x-queue-type": "stream"},
    "behind": {},  # what comes by the exchange
}
NAMES = {digest_of(str(id)): str(id) for id in range(IDS)}

Step = tuple[str, int]
kinds = ["publish"] * 8 + ["burst", "burst", "transaction", "take", "take", "purge", "renew", "end turn", "end turn"]
kinds += ["commit", "commit", "commit", "page", "page", "settle"]


def make_history(choice: random.Random) -> list[Step]:
    """Long enough that the log is shortened a few times: small examples would show nothing."""
    return [(choice.choice(kinds), choice.randrange(1000)) for _ in range(choice.randrange(1, 90))]


@dataclass
class Model:
    """What is in each queue, and what was seen; small enough to be looked through."""

    messages: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    seen: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in ("window", "stream", "exchange")})

    def publish(self, place: str, id: str) -> None:
        if id in (self.messages["present"] if place == "present" else self.seen[place]):
            return
        self.messages["behind" if place == "exchange" else place].append(id)
        if place != "present":
            self.seen[place] = [*self.seen[place], id][-SIZE:]

    def state(self) -> Any:
        messages = tuple((name, tuple(ids)) for name, ids in sorted(self.messages.items()))
        return messages, tuple((name, tuple(ids)) for name, ids in sorted(self.seen.items()))


class Lived:
    """One run of a broker; tells the history its states, and which of them are promised."""

    def __init__(self, history: History, number: int, options: StorageOptions) -> None:
        self.life = Life(history.files, number, options)
        self.history = history
        self.channel = self.life.publisher
        self.vhost = self.channel.vhost
        for name, arguments in QUEUES.items():
            self.channel.declare(name, durable=True, arguments=arguments)
        self.life.channel.core.rollback()
        if "x" not in self.vhost.exchanges:
            self._make_exchange()
        self.model = observe(self.life)
        self.epochs: dict[int, Any] = {}
        self.life.settle()
        self._tell()
        history.record(("promised", self.model.state()))
        self.life.on_durable = self._durable

    def do(self, step: Step) -> None:
        kind, pick = step
        getattr(self, "_" + kind.replace(" ", "_"))(pick)
        assert self.life.failure is None, self.life.failure
        self._tell()

    def _tell(self) -> None:
        self.epochs[self.life.epoch] = self.model.state()
        self.history.record(("state", self.model.state()))

    def _durable(self, epoch: int) -> None:
        done = [each for each in self.epochs if each <= epoch]
        if done:
            self.history.record(("promised", self.epochs[max(done)]))

    def _make_exchange(self) -> None:
        self.vhost.declare_exchange("x", "fanout", True, False, False, WINDOW)
        self.channel.bind("x", self.vhost.queues["behind"])

    def _publish(self, pick: int) -> None:
        self._send(self.channel, pick)
        place, id = divide(pick)
        self.model.publish(place, id)

    def _send(self, channel: Any, pick: int) -> None:
        place, id = divide(pick)
        key, exchange = ("", "x") if place == "exchange" else (place, "")
        channel.publish(id.encode(), key, exchange, delivery_mode=2, headers={"x-deduplication-header": id})

    def _burst(self, pick: int) -> None:
        for number in range(12):
            self._publish(pick + 4 * number)

    def _transaction(self, pick: int) -> None:
        picks = [pick, pick + 1, pick + 4, pick]
        for each in picks:
            self._send(self.life.channel, each)
        if pick % 3 == 0:
            self.life.channel.core.rollback()
            return
        self.life.channel.core.commit()
        for each in picks:
            self.model.publish(*divide(each))

    def _take(self, pick: int) -> None:
        name = ("present", "window", "behind")[pick % 3]
        queue = self.life.queue(name)
        for _ in range(1 + pick % 7):
            if not queue.needs_page() and self.channel.get(queue) is not None:
                del self.model.messages[name][0]

    def _purge(self, pick: int) -> None:
        name = ("present", "window", "behind")[pick % 3]
        self.life.queue(name).purge()
        self.model.messages[name].clear()

    def _renew(self, pick: int) -> None:
        """An exchange of the same name has seen nothing."""
        self.vhost.delete_exchange("x", False)
        self._make_exchange()
        self.model.seen["exchange"].clear()

    def _end_turn(self, pick: int) -> None:
        self.life.end_turn()

    def _commit(self, pick: int) -> None:
        self.life.commit_one(is_heard=pick % 3 != 0)

    def _page(self, pick: int) -> None:
        for _ in range(1 + pick % 3):
            self.life.page_one()
        if pick % 2:
            self.life.apply_one()

    def _settle(self, pick: int) -> None:
        self.life.settle()


def divide(pick: int) -> tuple[str, str]:
    """A place and an id."""
    return ("present", "window", "stream", "exchange")[pick % 4], str(pick // 4 % IDS)


def observe(life: Life) -> Model:
    """What a broker has that was just started."""
    model = Model()
    (found, _) = life.take_everything()
    for name, bodies in found:
        model.messages[name] = [body.decode() for body in bodies]
    vhost = life.publisher.vhost
    for name in ("window", "stream"):
        if name in vhost.queues:
            model.seen[name] = names_of(vhost.queues[name].deduplication)
    if "x" in vhost.exchanges:
        model.seen["exchange"] = names_of(vhost.exchanges["x"].deduplication)
    if "present" in vhost.queues:
        assert sorted(names_of(vhost.queues["present"].deduplication)) == sorted(model.messages["present"])
    return model


def names_of(deduplication: Deduplication | None) -> list[str]:
    assert deduplication is not None
    return [NAMES[id] for id, _ in deduplication.ids.stored()]


def judge(crash: Crash, found: Model) -> str | None:
    """What is wrong with what was found, if anything is."""
    state = found.state()
    allowed: list[Any] = [Model().state()]
    for kind, fact in crash.facts:
        if kind == "promised":
            allowed = allowed[max((at for at, each in enumerate(allowed) if each == fact), default=0) :]
        else:
            allowed.append(fact)
    if state in allowed:
        return None
    return f"found {state}\n  of {len(allowed)} states, the first {allowed[0]}\n  and the last {allowed[-1]}"


def find_failure(
    lives: list[list[Step]], seed: int, options: StorageOptions, make: type[RecordingFiles] = RecordingFiles
) -> str | None:
    """Live, crash, recover, and so on; the first thing that is wrong. Some lives end in order."""
    choice = random.Random(seed)
    files = RecordingFiles()
    files.make_dirs(ROOT)
    files.sync_dir("/")
    before = Crash(0, [], files.disk)
    for number, steps in enumerate(lives):
        history = History(make(before.disk), before.disk.after_kill(), [(0, fact) for fact in before.facts])
        lived = Lived(history, number, options)
        for step in steps:
            lived.do(step)
        if choice.random() < 0.2:
            lived.life.stop()
        outcomes = []
        for crash in history.crashes(choice, CRASHES, STATES):
            life = Life(RecordingFiles(crash.disk.after_kill()), 0, options)
            wrong = judge(crash, observe(life))
            if wrong is None and life.storage.has_damage:
                wrong = "damage is reported, and there was only a crash"
            if wrong is not None:
                how = "kill" if crash.killed else "power loss"
                return f"life {number}, {how} after operation {crash.after}: {wrong}\n  report {life.storage.report}"
            outcomes.append(crash)
        before = choice.choice(outcomes)
    return None


@settings(max_examples=effort(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), relog_below=st.sampled_from([0, 300, 1200]))
def test_an_id_is_there_if_and_only_if_its_message_was_kept(seed: int, relog_below: int) -> None:
    choice = random.Random(seed)
    lives = [make_history(choice) for _ in range(3)]
    failure = find_failure(lives, seed, replace(TINY, relog_below=relog_below))
    assert failure is None, f"seed {seed}: {failure}"


class ForgetfulFiles(RecordingFiles):
    """Says that it has synced, and has not."""

    def sync(self, handle: int) -> None:
        pass


def test_a_disk_that_does_not_sync_is_found_out() -> None:
    steps: list[Step] = [("publish", 50), ("end turn", 0), ("commit", 1), ("burst", 90), ("settle", 0)] * 6
    failures = [find_failure([steps], seed, TINY, ForgetfulFiles) for seed in range(20)]
    assert any(failures)
