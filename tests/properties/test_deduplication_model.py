"""What is remembered, beside models that are looked through from one end to the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.client import Client, ClientChannel, make_broker, waiting
from warrenmq.core.deduplication import QueuedIds, RecentIds
from warrenmq.core.queue import Queue

ids = st.integers(0, 9).map(lambda number: b"%016d" % number)


class WindowModel(RuleBasedStateMachine):
    """The last N ids that were new when they came, each until its time is up."""

    @initialize(size=st.integers(1, 6))
    def begin(self, size: int) -> None:
        self.size = size
        self.window = RecentIds(size)
        self.seen: list[tuple[bytes, int, bool]] = []  # id, when its time is up (0: never), kept; oldest first
        self.now_ms = 1

    def alive(self) -> list[tuple[bytes, int, bool]]:
        return [each for each in self.seen if not 0 < each[1] <= self.now_ms]

    @rule(id=ids, ttl_ms=st.sampled_from([0, 0, 1, 3, 10]), is_stored=st.booleans())
    def meet(self, id: bytes, ttl_ms: int, is_stored: bool) -> None:
        is_known = any(each[0] == id for each in self.alive())
        assert self.window.has(id, self.now_ms) is is_known
        if not is_known:
            expires_ms = self.now_ms + ttl_ms if ttl_ms else 0
            self.window.add(id, expires_ms, is_stored, self.now_ms)
            self.seen = [each for each in self.seen if each[0] != id]
            self.seen.append((id, expires_ms, is_stored))
            # Those whose time is up may stand before others, and make room only when it is their turn.
            self.seen = self.seen[-self.size :]
            self.forget_first()

    def forget_first(self) -> None:
        """The window lets go of those at the front whose time is up: by then they do not count anyway."""
        known = {id for id, _ in self.window.newest_stored(len(self.window))}
        while self.seen and self.seen[0] not in self.alive() and self.seen[0][0] not in known:
            del self.seen[0]

    @rule(passed_ms=st.integers(1, 5))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @invariant()
    def knows_who_is_alive(self) -> None:
        if hasattr(self, "window"):
            for id, _, _ in self.alive():
                assert self.window.has(id, self.now_ms)
            assert len(self.window) <= self.size
            kept = [(id, expires_ms) for id, expires_ms, is_stored in self.alive() if is_stored]
            found = [each for each in self.window.stored() if not 0 < each[1] <= self.now_ms]
            assert found == kept
            assert self.window.newest_stored(2) == list(self.window.stored())[-2:]


TestWindow = WindowModel.TestCase


@given(st.lists(st.tuples(ids, st.sampled_from([1, 2, 5]))))
def test_ids_with_little_time_that_come_again_and_again_do_not_fill_the_memory(met: list[tuple[bytes, int]]) -> None:
    window = RecentIds(1000)
    window.add(b"for ever........", 0, True, 0)
    now_ms = 1
    for _ in range(20):
        for id, passed_ms in met:
            if not window.has(id, now_ms):
                window.add(id, now_ms + 1, True, now_ms)
            now_ms += passed_ms
    assert len(window._order) <= 2 * len(window) + 16
    assert window.has(b"for ever........", now_ms)


def test_an_id_of_a_later_message_stays_when_the_earlier_one_goes() -> None:
    present = QueuedIds()
    present.add(b"a", 1, True)
    present.add(b"a", 5, True)
    assert present.remove(b"a", 1) is False
    assert present.has(b"a")
    assert present.remove(b"a", 5) is True
    assert not present.has(b"a")


class QueueModel(RuleBasedStateMachine):
    """A queue that drops what is in it already: never two of an id, and whatever left may come again."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: ClientChannel = Client(make_broker()).channel()
        self.queue: Queue = self.channel.declare("q", arguments={"x-message-deduplication": True})
        self.ready: list[str] = []
        self.unacked: dict[int, str] = {}

    @rule(id=st.sampled_from("abcdef"))
    def publish(self, id: str) -> None:
        self.channel.publish(id.encode(), "q", headers={"x-deduplication-header": id})
        if id not in self.ready and id not in self.unacked.values():
            self.ready.append(id)

    @rule(no_ack=st.booleans())
    def get(self, no_ack: bool) -> None:
        got = self.channel.get(self.queue, no_ack=no_ack)
        if got is not None:
            id = self.ready.pop(0)
            assert got.body.decode() == id
            if not no_ack:
                self.unacked[got.tag] = id

    @rule(pick=st.integers(0, 99), how=st.sampled_from(["ack", "drop"]))
    def settle(self, pick: int, how: str) -> None:
        if self.unacked:
            tag = sorted(self.unacked)[pick % len(self.unacked)]
            del self.unacked[tag]
            self.channel.ack(tag) if how == "ack" else self.channel.reject(tag, requeue=False)

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        self.ready.clear()

    @invariant()
    def is_the_same(self) -> None:
        assert waiting(self.queue) == "".join(self.ready)
        assert self.queue.deduplication is not None
        assert len(self.queue.deduplication.ids) == len(self.ready) + len(self.unacked)


TestQueue = QueueModel.TestCase
