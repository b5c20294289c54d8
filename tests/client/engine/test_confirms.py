"""The ledger of what waits for the broker's word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.client.confirms import Confirmation, Unconfirmed, make_unconfirmed
from warrenmq.client.delivery import Returned
from warrenmq.client.errors import Misuse, Nacked, PublishLost, Unroutable
from warrenmq.protocol.properties import BasicProperties, content_header

NOBODY: Any = None


def make_ledger() -> Unconfirmed:
    return Unconfirmed(NOBODY)


def message(body: bytes = b"x", mandatory: bool = True, key: str = "key") -> tuple[str, str, bytes, bytes, bool]:
    return "", key, content_header(len(body), BasicProperties()), body, mandatory


def returned(body: bytes = b"x", key: str = "key") -> tuple[Returned, bytes]:
    header = content_header(len(body), BasicProperties())
    return Returned(312, "NO_ROUTE", "", key, header, body), header


def test_word_on_one_publish_leaves_the_others_waiting() -> None:
    ledger = make_ledger()
    first, second, third = (ledger.add(None) for _ in range(3))
    assert ledger.settle(2, False, True, []) == 1
    assert [each.done() for each in (first, second, third)] == [False, True, False]
    assert second.exception() is None


def test_multiple_covers_all_up_to_the_number_whatever_came_before() -> None:
    ledger = make_ledger()
    confirmations = [ledger.add(None) for _ in range(5)]
    ledger.settle(2, False, True, [])
    assert ledger.settle(4, True, True, []) == 3
    assert [each.done() for each in confirmations] == [True, True, True, True, False]


def test_multiple_of_zero_covers_everything() -> None:
    ledger = make_ledger()
    confirmations = [ledger.add(None) for _ in range(3)]
    assert ledger.settle(0, True, True, []) == 3
    assert all(each.done() for each in confirmations)


def test_word_on_what_was_never_published_is_about_nothing() -> None:
    ledger = make_ledger()
    only = ledger.add(None)
    assert ledger.settle(7, False, True, []) == 0
    assert not only.done()


def test_nack_fails_the_publish_and_is_remembered_once() -> None:
    ledger = make_ledger()
    confirmation = ledger.add(None)
    ledger.settle(1, False, False, [])
    with pytest.raises(Nacked):
        confirmation.result()
    assert isinstance(ledger.take_first_error(), Nacked)
    assert ledger.take_first_error() is None


def test_only_who_is_waited_for_is_woken() -> None:
    ledger = make_ledger()
    first, second = ledger.add(None), ledger.add(None)
    calls: list[str] = []
    assert second.add_waiter(lambda: calls.append("to_wake"))
    to_wake: list[Confirmation] = []
    ledger.settle(2, True, True, to_wake)
    assert to_wake == [second]
    assert first.done()
    assert second.wake() == 1
    assert calls == ["to_wake"]
    assert not second.add_waiter(lambda: calls.append("too late"))


def test_return_fails_the_first_equal_mandatory_publish() -> None:
    ledger = make_ledger()
    plain = ledger.add(None)
    not_mandatory = ledger.add(message(mandatory=False))
    other_key = ledger.add(message(key="other"))
    first, second = ledger.add(message()), ledger.add(message())
    assert ledger.fail_returned(*returned(), [])
    assert isinstance(first.exception(), Unroutable)
    assert not any(each.done() for each in (plain, not_mandatory, other_key, second))
    ledger.settle(5, True, True, [])  # the acks that follow say nothing new about the first
    assert isinstance(first.exception(), Unroutable)
    assert second.exception() is None


def test_return_whose_header_the_broker_changed_is_known_by_the_rest() -> None:
    ledger = make_ledger()
    confirmation = ledger.add(message())
    came, _ = returned()
    assert ledger.fail_returned(came, b"another header", [])
    assert isinstance(confirmation.exception(), Unroutable)


def test_unknown_returned_message_fails_no_publish() -> None:
    ledger = make_ledger()
    confirmation = ledger.add(message())
    assert not ledger.fail_returned(*returned(key="elsewhere"), [])
    assert not confirmation.done()


def test_barrier_is_done_when_all_earlier_publishes_are() -> None:
    ledger = make_ledger()
    for _ in range(3):
        ledger.add(None)
    barrier = ledger.add_barrier()
    ledger.add(None)
    ledger.settle(3, False, True, [])
    ledger.settle(1, False, True, [])
    assert not barrier.done()
    ledger.settle(2, False, True, [])
    assert barrier.done()


def test_barrier_with_nothing_outstanding_is_there_at_once() -> None:
    assert make_ledger().add_barrier().done()


def test_loss_fails_all_and_tags_count_on() -> None:
    ledger = make_ledger()
    confirmations = [ledger.add(None) for _ in range(3)]
    barrier = ledger.add_barrier()
    assert ledger.fail_all(PublishLost("lost"), []) == 3
    assert all(isinstance(each.exception(), PublishLost) for each in confirmations)
    assert barrier.done()
    assert isinstance(ledger.take_first_error(), PublishLost)
    assert ledger.next_tag == 4
    after = ledger.add(None)
    assert after.tag == 4
    ledger.settle(1, False, True, [])  # the new link counts from 1
    assert after.exception() is None


def test_what_is_sent_again_keeps_its_tags_and_order() -> None:
    ledger = make_ledger()
    confirmations = [ledger.add(message(b"%d" % number)) for number in range(5)]
    ledger.settle(2, False, True, [])
    barrier = ledger.add_barrier()
    again = ledger.renumber()
    assert [each.tag for each in again] == [1, 3, 4, 5]
    assert ledger.listener_tags(2, True) == [(1, False), (3, False)]
    ledger.settle(2, True, True, [])
    assert [each.done() for each in confirmations] == [True, True, True, False, False]
    assert not barrier.done()
    assert ledger.add(None).tag == 6
    assert ledger.listener_tags(5, True) == [(6, True)]
    ledger.settle(4, True, True, [])
    assert barrier.done()


def test_outside_confirm_mode_waiting_for_a_confirm_raises() -> None:
    unconfirmed = make_unconfirmed()
    assert unconfirmed.tag == 0
    assert repr(unconfirmed) == "<Confirmation: unconfirmed>"
    called: list[Any] = []
    for wait in (unconfirmed.result, unconfirmed.exception, lambda: unconfirmed.add_done_callback(called.append)):
        with pytest.raises(Misuse, match="confirm_select"):
            wait()
    with pytest.raises(Misuse, match="confirm_select"):
        unconfirmed.__await__().send(None)
    assert called == []


WORDS = st.lists(
    st.one_of(st.just("publish"), st.tuples(st.integers(0, 12), st.booleans(), st.booleans())), max_size=40
)


@given(WORDS)
def test_ledger_agrees_with_a_plain_list(words: list[Any]) -> None:
    """Whatever a broker says, in whatever order, twice or about nothing."""
    ledger, confirmations, outcome = make_ledger(), [], {}
    for word in words:
        if word == "publish":
            confirmations.append(ledger.add(None))
            continue
        number, multiple, is_ack = word
        upto = len(confirmations) if number == 0 else number
        meant = range(1, upto + 1) if multiple else (number,)
        for each in meant:
            if 1 <= each <= len(confirmations):
                outcome.setdefault(each, is_ack)
        ledger.settle(number, multiple, is_ack, [])
    for number, confirmation in enumerate(confirmations, 1):
        assert confirmation.done() is (number in outcome)
        if number in outcome:
            assert (confirmation.exception() is None) is outcome[number]
    assert ledger.count == len(confirmations) - len(outcome)
