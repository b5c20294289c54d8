"""The ledger: delivery tags, unacked deliveries, and the channel's credit."""

from __future__ import annotations

from warrenmq.core.ledger import Ledger
from warrenmq.core.message import Message, QueuedMessage, address_of
from warrenmq.protocol.properties import BasicProperties, content_header

SOMEBODY = object()


def entry(position: int = 0, consumer: object = SOMEBODY) -> QueuedMessage:
    made = QueuedMessage(Message(address_of("", "q"), content_header(0, BasicProperties()), b""), position)
    made.consumer = consumer
    return made


def filled(count: int) -> tuple[Ledger, list[QueuedMessage]]:
    ledger, entries = Ledger(), [entry(position) for position in range(count)]
    for each in entries:
        ledger.add(each)
    return ledger, entries


def test_tags_grow_by_one_from_one_whether_acked_or_not() -> None:
    ledger = Ledger()
    assert [ledger.add(entry()), ledger.next_tag(), ledger.add(entry()), ledger.next_tag()] == [1, 2, 3, 4]


def test_tags_are_not_used_again_after_they_were_settled() -> None:
    ledger, _ = filled(3)
    ledger.take_all()
    assert ledger.add(entry()) == 4


def test_a_tag_can_be_taken_once() -> None:
    ledger, entries = filled(2)
    assert ledger.take(2) is entries[1]
    assert ledger.take(2) is None
    assert ledger.take(1) is entries[0]


def test_tags_that_were_never_out_cannot_be_taken() -> None:
    ledger, _ = filled(1)
    ledger.next_tag()
    assert [ledger.take(0), ledger.take(2), ledger.take(3), ledger.take(2**64 - 1)] == [None] * 4
    assert len(ledger.unacked) == 1


def test_taking_up_to_a_tag_takes_the_oldest_first_and_leaves_the_rest() -> None:
    ledger, entries = filled(5)
    assert ledger.take_up_to(3) == [(1, entries[0]), (2, entries[1]), (3, entries[2])]
    assert list(ledger.unacked) == [4, 5]


def test_taking_up_to_a_tag_steps_over_what_was_taken_before() -> None:
    ledger, entries = filled(5)
    ledger.take(2)
    ledger.take(4)
    assert ledger.take_up_to(5) == [(1, entries[0]), (3, entries[2]), (5, entries[4])]
    assert ledger.take_up_to(5) == []


def test_taking_up_to_a_tag_far_behind_a_gap_finds_all_that_is_out() -> None:
    ledger, entries = filled(2)
    for _ in range(10_000):
        ledger.next_tag()
    late = entry(2)
    tag = ledger.add(late)
    assert tag == 10_003
    assert ledger.take_up_to(tag) == [(1, entries[0]), (2, entries[1]), (tag, late)]


def test_taking_up_to_the_last_tag_of_an_unused_ledger_takes_nothing() -> None:
    ledger = Ledger()
    assert ledger.take_up_to(ledger.last_tag) == []
    assert ledger.add(entry()) == 1
    assert [tag for tag, _ in ledger.take_up_to(1)] == [1]


def test_taking_all_returns_the_oldest_first() -> None:
    ledger, entries = filled(3)
    assert ledger.take_all() == entries
    assert ledger.take_all() == []


def test_what_is_put_back_is_out_again_in_its_old_order() -> None:
    ledger, entries = filled(5)
    taken = ledger.take_up_to(2)
    fourth = ledger.take(4)
    assert fourth is not None
    ledger.put_back([(4, fourth), *taken])
    assert list(ledger.unacked) == [1, 2, 3, 4, 5]
    assert ledger.take_up_to(3) == list(enumerate(entries[:3], start=1))
    assert ledger.take_all() == entries[3:]


def test_what_is_put_back_can_be_taken_up_to_a_tag_again() -> None:
    ledger, entries = filled(3)
    ledger.put_back(ledger.take_up_to(3))
    assert ledger.take_up_to(2) == [(1, entries[0]), (2, entries[1])]


def test_putting_nothing_back_changes_nothing() -> None:
    ledger, entries = filled(2)
    ledger.put_back([])
    assert ledger.take_all() == entries


def test_without_a_prefetch_it_is_never_full() -> None:
    ledger, _ = filled(1000)
    assert not ledger.is_full()


def test_it_is_full_at_its_prefetch_until_something_is_settled() -> None:
    """Striking a tag is not settling it: a transaction may hold it."""
    ledger, _ = filled(2)
    ledger.prefetch = 2
    assert ledger.is_full()
    taken = ledger.take_up_to(2)
    assert ledger.is_full()
    ledger.put_back(taken)
    assert ledger.is_full()
    ledger.outstanding -= 1
    assert not ledger.is_full()
    ledger.prefetch = 1
    assert ledger.is_full()


def test_fetched_messages_do_not_count_against_the_prefetch() -> None:
    ledger = Ledger()
    ledger.prefetch = 1
    ledger.add(entry(consumer=None))
    assert not ledger.is_full()
    ledger.add(entry())
    assert ledger.is_full()
