"""Queues that a start finds empty are only a name until they are used; nobody sees a difference."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept
from tests.support.client import Client
from warrenmq.core.options import QueueOptions
from warrenmq.core.policies import NO_POLICIES
from warrenmq.core.queues import Queues
from warrenmq.core.snapshot import memory, overview, policy_view, queue_view, view_queue
from warrenmq.events import schema
from warrenmq.storage.segments import NO_SEGMENTS

MANY = 2000
# Of 170 in all: a name, two entries of dictionaries that may just have grown, a number.
BYTES_PER_QUEUE = 400
# Of 1,330.
BYTES_PER_DECLARED_QUEUE = 1800

both_ends = pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "data")


def queues_of(kept: Kept) -> Queues:
    queues: Queues = kept.broker.vhosts["/"].queues
    return queues


@both_ends
@pytest.mark.parametrize("is_trimmed", [True, False], ids=["from the catalog", "from the log"])
def test_an_empty_queue_is_made_when_it_is_used(kept: Kept, clean: bool, is_trimmed: bool) -> None:
    for name in ("first", "second"):
        kept.declare(name)
    if is_trimmed:
        kept.checkpoint()
    kept.restart(clean)
    queues = queues_of(kept)
    assert (queues.idle(), queues.made(), len(queues), list(queues)) == (
        ["first", "second"],
        [],
        2,
        ["first", "second"],
    )
    assert "first" in queues
    assert queues.get("third") is None
    kept.publish([1, 2], "second")
    assert queues.idle() == ["first"]
    kept.settle()
    kept.restart(clean)
    assert queues_of(kept).idle() == ["first"]
    assert (kept.drain("second"), kept.drain("first")) == ([1, 2], [])


@both_ends
def test_only_plain_queues_are_idle(kept: Kept, clean: bool) -> None:
    kept.declare("plain")
    kept.declare("limited", **{"x-max-length": 5})
    kept.declare("stream", **{"x-queue-type": "stream"})
    kept.channel.declare("temporary", durable=True, auto_delete=True)
    kept.declare("bound")
    kept.channel.bind("amq.fanout", kept.queue("bound"))
    kept.declare("full")
    kept.publish([1], "full")
    kept.settle()
    kept.restart(clean)
    assert queues_of(kept).idle() == ["plain"]
    assert queues_of(kept)["temporary"].is_auto_delete


@both_ends
def test_positions_are_not_used_again(kept: Kept, clean: bool) -> None:
    """A queue was emptied; the log is trimmed and read several times before anybody uses it."""
    kept.declare("q")
    kept.publish(range(5))
    assert kept.drain() == [0, 1, 2, 3, 4]
    kept.settle()
    kept.restart()
    for carry in (True, False):
        assert queues_of(kept).idle() == ["q"]
        kept.checkpoint(carry)
        kept.restart(clean)
    assert queues_of(kept).idle() == ["q"]
    assert kept.queue().backlog.next_position == 5  # type: ignore[attr-defined]
    kept.publish([5])
    kept.settle()
    kept.checkpoint()
    kept.restart(clean)
    assert kept.drain() == [5]
    assert kept.storage.report == []


def test_a_queue_that_is_used_within_a_checkpoint_keeps_its_position(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warrenmq.storage.checkpoint.POSITIONS_PER_SLICE", 1)
    names = [f"q{number}" for number in range(6)]
    for name in names:
        kept.declare(name)
        kept.publish([1, 2, 3], name)
        kept.drain(name)
    kept.settle()
    kept.restart()
    kept.settle()
    kept.storage.checkpoint.begin(kept.storage.log.last, may_relog=True)
    for name in reversed(names):
        kept.queue(name)
        kept.storage._run_callback()  # the next slice
    kept.storage.run_all()
    kept.settle()
    kept.restart(clean=False)
    assert [kept.queue(name).backlog.next_position for name in names] == [3] * 6  # type: ignore[attr-defined]


@both_ends
def test_a_deleted_one_stays_deleted(kept: Kept, clean: bool) -> None:
    for name in ("a", "b", "c"):
        kept.declare(name)
    kept.restart(clean)
    vhost = kept.broker.vhosts["/"]
    assert vhost.delete_queue("b", None, if_unused=True, if_empty=True) == 0
    kept.settle()
    kept.restart(clean)
    assert queues_of(kept).idle() == ["a", "c"]
    number = kept.declare("b") and kept.store("b").number
    assert number not in (kept.store("a").number, kept.store("c").number)


def test_a_virtual_host_is_deleted_with_them(kept: Kept) -> None:
    kept.broker.add_vhost("other")
    Client(kept.broker, "other").channel().declare("q", durable=True)
    kept.settle()
    kept.restart()
    kept.broker.delete_vhost("other")
    kept.settle()
    kept.restart()
    assert list(kept.broker.vhosts) == ["/"]
    assert kept.storage.catalog.queue_id("other", "q") > 1


def test_declaring_one_again_changes_nothing(kept: Kept) -> None:
    kept.declare("q")
    kept.restart()
    work = kept.storage.log.work
    queue = kept.declare("q")
    assert (queue.message_count(), queue.is_durable, queue.arguments) == (0, True, {})
    assert kept.storage.log.work == work


def test_using_one_keeps_the_cached_routes(kept: Kept) -> None:
    kept.declare("a")
    kept.declare("b")
    kept.restart()
    vhost = kept.broker.vhosts["/"]
    route, number = vhost.find_own_route("", "a"), vhost.topology.number
    kept.publish([1], "b")
    assert queues_of(kept).idle() == []
    assert vhost.topology.number == number
    assert vhost.find_own_route("", "a") is route


def test_a_view_makes_no_queue(kept: Kept) -> None:
    kept.declare("q")
    kept.restart()
    vhost = kept.broker.vhosts["/"]
    seen = view_queue(vhost, "q")
    totals = overview(kept.broker)
    memory(kept.broker)
    assert (queues_of(kept).idle(), totals.queues) == (["q"], 1)
    queue = kept.queue()
    assert seen == (queue_view(queue), policy_view(vhost, queue)) == view_queue(vhost, "q")
    assert overview(kept.broker) == totals


def test_the_memory_of_definitions_follows(kept: Kept) -> None:
    before = kept.broker.stats.definition_bytes
    kept.declare("q")
    full = kept.broker.stats.definition_bytes
    kept.restart()
    idle = kept.broker.stats.definition_bytes
    assert before < idle < full
    kept.channel.delete(kept.queue())
    assert kept.broker.stats.definition_bytes == before


def test_one_that_is_used_while_the_firehose_is_open_is_tapped(kept: Kept) -> None:
    kept.declare("q")
    kept.restart()
    kept.broker.vhosts["/"].tap(True)
    assert queues_of(kept).idle() == ["q"]
    assert kept.queue().is_tapped


# -- policies --------------------------------------------------------------------------------------------------------


def test_a_policy_makes_the_queues_that_it_matches(kept: Kept) -> None:
    for name in ("a1", "a2", "b1"):
        kept.declare(name)
    kept.restart()
    policies = kept.broker.vhosts["/"].policies
    policies.set("p", "^a", {"max-length": 5})
    policies.set("o", "2$", {"max-length": 3}, is_operator=True)
    assert queues_of(kept).idle() == ["b1"]
    limits = [kept.queue(name).options.max_length for name in ("a1", "a2", "b1")]
    assert limits == [5, 3, None]
    policies.clear("p")
    limits = [kept.queue(name).options.max_length for name in ("a1", "a2", "b1")]
    assert limits == [None, 3, None]


@both_ends
def test_a_queue_with_a_policy_is_not_idle(kept: Kept, clean: bool) -> None:
    kept.broker.vhosts["/"].policies.set("p", "^a", {"expires": 1000})
    for name in ("a", "b"):
        kept.declare(name)
    kept.restart(clean)
    assert queues_of(kept).idle() == ["b"]
    kept.advance(2000)
    assert list(queues_of(kept)) == ["b"]


def test_a_policy_that_is_set_in_slices_reaches_each_queue_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are used, deleted or declared again between the slices."""
    monkeypatch.setattr("warrenmq.core.policies.SLICE", 3)
    names = [f"q{number}" for number in range(20)]
    for name in names:
        kept.declare(name)
    kept.restart()
    vhost = kept.broker.vhosts["/"]
    vhost.policies.set("p", "q", {"max-length": 5})
    assert queues_of(kept).idle(), "the rest waits for the next turns"
    assert kept.queue("q19").options.max_length == 5
    kept.channel.delete(kept.queue("q18"))
    kept.channel.delete(kept.queue("q17"))
    kept.declare("q17")
    vhost.policies.clear("p")
    kept.advance(1000)
    assert [kept.queue(name).options.max_length for name in queues_of(kept)] == [None] * 19
    assert [vhost.policies.of(queue) is NO_POLICIES for queue in queues_of(kept).made()] == [True] * 19


# -- memory ----------------------------------------------------------------------------------------------------------


@both_ends
def test_an_idle_queue_takes_little_memory(kept: Kept, clean: bool) -> None:
    for number in range(MANY):
        kept.channel.declare(f"queue-{number}", durable=True)
    kept.settle()
    kept.stop() if clean else kept.crash()
    kept.broker = kept.storage = kept.channel = None  # type: ignore[assignment]
    tracemalloc.start()
    try:
        kept.open_storage()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(queues_of(kept).idle()) == MANY
    assert size < MANY * BYTES_PER_QUEUE


def test_events_of_a_queue_are_those_of_its_declaration(kept: Kept) -> None:
    """Using an idle queue is no declaration."""
    told: list[int] = []

    def note(kind: int, vhost: str, fields: dict[str, Any]) -> None:
        told.append(kind)

    kept.declare("q")
    kept.restart()
    kept.broker.emit = lambda kind, vhost, **fields: note(kind, vhost, fields)
    kept.queue()
    assert told == []
    kept.declare("r")
    assert told == [schema.QUEUE_DECLARED]


# -- objects made when they are first used -------------------------------------------------------------------------


def test_a_queue_without_messages_and_consumers_shares_what_is_empty(kept: Kept) -> None:
    first, second = kept.declare("first"), kept.declare("second")
    stores = kept.store("first"), kept.store("second")
    assert first.options is second.options
    assert first.arguments is second.arguments
    assert stores[0].segments is stores[1].segments is NO_SEGMENTS
    assert stores[0].held is stores[1].held
    assert (first.ring.levels, first.ring.priorities) == (None, None)  # type: ignore[attr-defined]


def test_what_is_shared_stays_empty(kept: Kept) -> None:
    """One queue is paged out, filtered and read back; the other one has nothing of it."""
    other = kept.declare("other")
    nothing = kept.store("other").held
    kept.declare("q")
    kept.publish(range(300))
    kept.settle()
    store, backlog = kept.store(), kept.queue().backlog  # type: ignore[attr-defined]
    assert backlog.paged > 0
    found: list[int] = []
    store.read_page(store.last_read + 1, lambda entries, last, lost: found.extend(e.position for e in entries))
    kept.settle()
    assert store.take_paged(found[-1], 1)
    assert found[-1] in store.held
    assert store.segments.all
    assert (kept.store("other").held, NO_SEGMENTS.all, NO_SEGMENTS.reading) == (nothing, [], None)
    assert (nothing, other.message_count()) == (set(), 0)
    assert other.options == QueueOptions(is_durable=True)


def test_a_declared_queue_takes_little_memory(kept: Kept) -> None:
    kept.declare("first")
    tracemalloc.start()
    try:
        for number in range(MANY):
            kept.channel.declare(f"queue-{number}", durable=True)
        kept.settle()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < MANY * BYTES_PER_DECLARED_QUEUE
