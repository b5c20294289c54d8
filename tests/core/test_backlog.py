"""The backlog of a queue in memory, against a plain sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.backlog import Backlog
from warrenmq.core.message import Message, QueuedMessage, address_of
from warrenmq.core.stats import Stats
from warrenmq.protocol.properties import BasicProperties, content_header

MESSAGE = Message(address_of("", "q"), content_header(3, BasicProperties()), b"abc")


def backlog_of(count: int) -> Backlog:
    backlog = Backlog(Stats())
    for position in range(count):
        backlog.append(QueuedMessage(MESSAGE, position))
    return backlog


def positions(backlog: Backlog) -> list[int]:
    return [entry.position for entry in backlog]


def take(backlog: Backlog, count: int) -> list[QueuedMessage]:
    taken = [backlog.take() for _ in range(count)]
    return [entry for entry in taken if entry is not None]


def test_an_empty_backlog_has_no_first() -> None:
    backlog = Backlog(Stats())
    assert backlog.first() is None
    assert backlog.take() is None
    assert len(backlog) == 0
    assert positions(backlog) == []


def test_the_first_in_is_the_first_out() -> None:
    backlog = backlog_of(3)
    assert [entry.position for entry in take(backlog, 4)] == [0, 1, 2]
    assert len(backlog) == 0


def test_the_first_can_be_looked_at_before_it_is_taken() -> None:
    backlog = backlog_of(2)
    (entry,) = take(backlog, 1)
    backlog.requeue([entry])
    assert backlog.first() is entry
    assert backlog.take() is entry
    assert len(backlog) == 1


def test_places_given_back_change_nothing_for_those_that_wait() -> None:
    backlog = backlog_of(10_000)
    taken = take(backlog, 7_000)
    assert [entry.position for entry in taken] == list(range(7_000))
    assert len(backlog) == 3_000
    assert positions(backlog) == list(range(7_000, 10_000))
    backlog.requeue(taken[5_000:])
    backlog.requeue(taken[:5_000])
    assert positions(backlog) == list(range(10_000))


def test_many_that_return_one_by_one_find_their_places() -> None:
    """Cheaply: a client may hold and give back any number, and nobody else can be served meanwhile."""
    backlog = backlog_of(30_000)
    taken = take(backlog, 30_000)
    for entry in taken[::2]:
        backlog.requeue([entry])
    for entry in reversed(taken[1::2]):
        backlog.requeue([entry])
    assert positions(backlog) == list(range(30_000))


def test_a_purged_backlog_can_be_used_again() -> None:
    backlog = backlog_of(5)
    taken = take(backlog, 2)
    backlog.drop_all()
    assert len(backlog) == 0
    backlog.requeue(taken)
    backlog.append(QueuedMessage(MESSAGE, 9))
    assert positions(backlog) == [0, 1, 9]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 700)),
        st.tuples(st.just("take"), st.integers(1, 900)),
        st.tuples(st.just("put back"), st.lists(st.integers(0, 2000), min_size=1, max_size=20)),
    ),
    max_size=30,
)


@given(steps)
def test_it_stays_in_order_whatever_leaves_and_returns(steps: list[tuple[str, int | list[int]]]) -> None:
    backlog, model, out, last = Backlog(Stats()), list[int](), dict[int, QueuedMessage](), 0
    for step, detail in steps:
        if step == "append":
            assert isinstance(detail, int)
            for _ in range(detail):
                backlog.append(QueuedMessage(MESSAGE, last))
                model.append(last)
                last += 1
        elif step == "take":
            assert isinstance(detail, int)
            for entry in take(backlog, detail):
                assert entry.position == model.pop(0)
                out[entry.position] = entry
        elif out:
            assert isinstance(detail, list)
            held = list(out)
            chosen = {held[pick % len(held)] for pick in detail}
            backlog.requeue([out.pop(position) for position in chosen])
            model = sorted([*model, *chosen])
        assert len(backlog) == len(model) == backlog.stats.ready
        assert backlog.body_bytes == len(model) * len(MESSAGE.body)
        assert backlog.stats.held_bytes == (len(model) + len(out)) * MESSAGE.footprint()
        assert positions(backlog) == model
