"""The line of a queue, against a plain sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.line import Line
from warrenmq.core.message import Message, QueuedMessage, address_of
from warrenmq.protocol.properties import BasicProperties, content_header

MESSAGE = Message(address_of("", "q"), content_header(0, BasicProperties()), b"")


def line_of(count: int) -> Line:
    line = Line()
    for position in range(count):
        line.append(QueuedMessage(MESSAGE, position))
    return line


def positions(line: Line) -> list[int]:
    return [entry.position for entry in line]


def take(line: Line, count: int) -> list[QueuedMessage]:
    taken = [line.take_first() for _ in range(count)]
    return [entry for entry in taken if entry is not None]


def test_an_empty_line_has_no_first() -> None:
    line = Line()
    assert line.first() is None
    assert line.take_first() is None
    assert len(line) == 0
    assert positions(line) == []


def test_the_first_in_is_the_first_out() -> None:
    line = line_of(3)
    assert [entry.position for entry in take(line, 4)] == [0, 1, 2]
    assert len(line) == 0


def test_the_first_can_be_looked_at_before_it_is_taken() -> None:
    line = line_of(2)
    (entry,) = take(line, 1)
    line.put_back([entry])
    assert line.first() is entry
    assert line.take_first() is entry
    assert len(line) == 1


def test_places_given_back_change_nothing_for_those_that_wait() -> None:
    line = line_of(10_000)
    taken = take(line, 7_000)
    assert [entry.position for entry in taken] == list(range(7_000))
    assert len(line) == 3_000
    assert positions(line) == list(range(7_000, 10_000))
    line.put_back(taken[5_000:])
    line.put_back(taken[:5_000])
    assert positions(line) == list(range(10_000))


def test_many_that_return_one_by_one_find_their_places() -> None:
    """Cheaply: a client may hold and give back any number, and nobody else can be served meanwhile."""
    line = line_of(30_000)
    taken = take(line, 30_000)
    for entry in taken[::2]:
        line.put_back([entry])
    for entry in reversed(taken[1::2]):
        line.put_back([entry])
    assert positions(line) == list(range(30_000))


def test_a_cleared_line_can_be_used_again() -> None:
    line = line_of(5)
    taken = take(line, 2)
    line.clear()
    assert len(line) == 0
    line.put_back(taken)
    line.append(QueuedMessage(MESSAGE, 9))
    assert positions(line) == [0, 1, 9]


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
    line, model, out, last = Line(), list[int](), dict[int, QueuedMessage](), 0
    for step, detail in steps:
        if step == "append":
            assert isinstance(detail, int)
            for _ in range(detail):
                line.append(QueuedMessage(MESSAGE, last))
                model.append(last)
                last += 1
        elif step == "take":
            assert isinstance(detail, int)
            for entry in take(line, detail):
                assert entry.position == model.pop(0)
                out[entry.position] = entry
        elif out:
            assert isinstance(detail, list)
            held = list(out)
            chosen = {held[pick % len(held)] for pick in detail}
            line.put_back([out.pop(position) for position in chosen])
            model = sorted([*model, *chosen])
        assert len(line) == len(model)
        assert positions(line) == model
