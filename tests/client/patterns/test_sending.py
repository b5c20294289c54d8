"""Whether a message is sent again, when, and its result: no broker, no waiting."""

from __future__ import annotations

from typing import Any

import pytest

from warrenmq import client
from warrenmq.client.confirms import Confirmation
from warrenmq.client.errors import (
    CallTimedOut,
    ChannelClosed,
    ClientError,
    CloseReason,
    ConnectionBlocked,
    ConnectionClosed,
    ConnectionLost,
    Misuse,
    Nacked,
    NotFound,
    PublishLost,
    Unroutable,
    channel_error,
)
from warrenmq.client.sending import (
    Backlog,
    OutgoingMessage,
    Retry,
    SendFailed,
    Sending,
    SendResult,
    Try,
    owned_copy,
    raise_failure,
)

NO_EXCHANGE = channel_error(CloseReason("server", 404, "NOT_FOUND - no exchange 'x'", 60, 40))
STEADY = Retry(retries=3, interval=0.5, jitter=0)


class Gone:
    exchange, routing_key, reply_code, reply_text = "", "nowhere", 312, "NO_ROUTE"


def unroutable() -> Unroutable:
    gone: Any = Gone()
    return Unroutable(gone)


def tried(retry: Retry = STEADY, timeout: float | None = None) -> Sending:
    sending = Sending(retry, timeout)
    sending.begin(30)
    return sending


@pytest.mark.parametrize(
    "error",
    [Nacked("no"), PublishLost("gone"), ConnectionLost("away"), CallTimedOut("late"), ConnectionBlocked("blocked")],
    ids=lambda error: type(error).__name__,
)
def test_what_may_go_better_next_time_is_tried_again(error: ClientError) -> None:
    assert tried().failed(error, is_alone=True) == 0.5


@pytest.mark.parametrize(
    "error",
    [NO_EXCHANGE, ConnectionClosed(CloseReason("client")), unroutable(), ChannelClosed(CloseReason("client"))],
    ids=lambda error: type(error).__name__,
)
def test_what_would_only_fail_again_is_given_up(error: ClientError) -> None:
    sending = tried()
    assert sending.failed(error, is_alone=True) is None
    assert sending.given_up().error is error
    assert not sending.given_up().ok


def test_unroutable_is_tried_again_where_that_is_wanted() -> None:
    assert tried(Retry(unroutable=True, jitter=0)).failed(unroutable(), is_alone=True) == 0.1


def test_missing_exchange_is_tried_again_where_that_is_wanted() -> None:
    missing = NotFound(CloseReason("server", 404))
    sending = tried(Retry(missing=True, jitter=0, retries=2))
    assert [sending.failed(missing, is_alone=True) for _ in range(2)] == [0.1, 0.2]
    assert tried(Retry(jitter=0)).failed(missing, is_alone=True) is None


def test_innocent_message_on_a_refused_channel_gets_one_more_chance() -> None:
    sending = tried()
    assert sending.failed(NO_EXCHANGE, is_alone=False) is not None
    sending.begin(30)
    assert sending.failed(NO_EXCHANGE, is_alone=False) is None


def test_loss_that_came_of_a_refusal_counts_as_one() -> None:
    class Refused:
        close_reason = NO_EXCHANGE.reason

    attempt = Try(OutgoingMessage(b""), STEADY, None)
    attempt.begin(30)
    attempt.channel = Refused()
    assert attempt.failed(PublishLost("no word will come"), is_alone=True) is None
    assert attempt.result is not None
    assert isinstance(attempt.result.error, NotFound)


def test_pauses_grow_and_the_retries_have_an_end() -> None:
    sending = Sending(STEADY, None)
    pauses = []
    while True:
        sending.begin(30)
        pause = sending.failed(Nacked("no"), is_alone=True)
        if pause is None:
            break
        pauses.append(pause)
    assert pauses == [0.5, 1.0, 2.0]
    assert sending.given_up().attempts == 4


def test_pause_that_would_not_leave_time_ends_the_sending() -> None:
    assert tried(timeout=0.4).failed(Nacked("no"), is_alone=True) is None


def test_attempt_takes_no_longer_than_the_whole() -> None:
    assert Sending(STEADY, 2.0).begin(30) <= 2.0
    assert Sending(STEADY, None).begin(30) == 30
    assert Sending(STEADY, 0).begin(30) == 0


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"interval": -1}, {"backoff": 0.5}, {"jitter": 2}])
def test_invalid_retry_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        Retry(**wrong)


def test_failure_of_many_has_their_number_and_the_first_error() -> None:
    bad = SendResult("failed", 17, Nacked("the broker said no"))
    results = [SendResult("confirmed"), bad, bad]
    with pytest.raises(SendFailed, match=r"2 of 3 .*17 attempts: the broker said no") as caught:
        raise_failure(results)
    assert caught.value.result is bad
    assert caught.value.results == tuple(results)
    raise_failure(results[:1])


def test_outcomes_that_are_ok() -> None:
    assert [SendResult(each).ok for each in ("confirmed", "sent", "queued", "dropped", "failed")] == [
        True,
        True,
        True,
        False,
        False,
    ]


# -- the backlog


def test_backlog_keeps_order_and_counts() -> None:
    backlog = Backlog(10, 1000, retries=2)
    for body in (b"a", b"bb"):
        assert backlog.add(OutgoingMessage(body))
    assert (len(backlog), backlog.size) == (2, 3)
    assert backlog.first().body == b"a"
    backlog.first_sent()
    assert (backlog.first().body, backlog.size, backlog.sent) == (b"bb", 2, 1)


def test_backlog_is_bounded_by_messages_and_by_bytes() -> None:
    few = Backlog(1, 1000, retries=2)
    assert (few.add(OutgoingMessage(b"a")), few.add(OutgoingMessage(b"b")), few.dropped) == (True, False, 1)
    small = Backlog(100, 5, retries=2)
    assert (
        small.add(OutgoingMessage(b"1234")),
        small.add(OutgoingMessage(b"56")),
        small.add(OutgoingMessage(b"7")),
    ) == (True, False, True)
    assert small.dropped == 1


def fail_round(backlog: Backlog) -> int:
    return backlog.failed(ConnectionLost("away"), is_last=False)


def test_message_is_dropped_after_its_own_number_of_failed_rounds() -> None:
    backlog = Backlog(10, 1000, retries=2)
    backlog.add(OutgoingMessage(b"early"))
    assert fail_round(backlog) == 0
    backlog.add(OutgoingMessage(b"late"))
    assert fail_round(backlog) == 0
    assert fail_round(backlog) == 1
    assert backlog.first().body == b"late"
    assert fail_round(backlog) == 1
    assert (len(backlog), backlog.dropped, backlog.size) == (0, 2, 0)


def test_bad_message_is_dropped_alone_and_all_are_when_it_is_over() -> None:
    backlog = Backlog(10, 1000, retries=2)
    for body in (b"bad", b"good", b"better"):
        backlog.add(OutgoingMessage(body))
    assert backlog.failed(Misuse("no such header"), is_last=False) == 1
    assert backlog.first().body == b"good"
    assert backlog.failed(ConnectionClosed(CloseReason("client")), is_last=False) == 2
    assert (len(backlog), backlog.dropped, backlog.size) == (0, 3, 0)
    assert backlog.failed(Misuse("after close"), is_last=True) == 0


def test_what_is_held_back_does_not_change_under_its_owners_hands() -> None:
    body, properties = bytearray(b"then"), client.Properties(headers={"a": 1}, type="then")
    kept = owned_copy(OutgoingMessage(body, properties, "key", "exchange"))
    body[:] = b"now!"
    properties.type = "now"
    (properties.headers or {})["a"] = 2
    assert kept == OutgoingMessage(b"then", client.Properties(headers={"a": 1}, type="then"), "key", "exchange")
    with pytest.raises(Misuse):
        owned_copy(OutgoingMessage(b"", client.Properties(priority=300)))
    with pytest.raises(Misuse):
        owned_copy(OutgoingMessage(b"", None, "k" * 256))


def test_names_are_the_clients() -> None:
    assert client.SendFailed is SendFailed


# -- a word that comes when the time is up


def late_word(word: ClientError | None) -> Try:
    """A message whose word came after its attempt had timed out, and before that was noted."""
    attempt = Try(OutgoingMessage(b""), STEADY, None)
    attempt.begin(0.05)
    attempt.confirmation = Confirmation(tag=7)
    attempt.confirmation.settle(word, [])
    return attempt


def test_yes_that_comes_when_the_time_is_up_counts() -> None:
    attempt = late_word(None)
    assert attempt.failed(CallTimedOut("late"), is_alone=True) is None
    assert attempt.result is not None
    assert (attempt.result.outcome, attempt.result.tag, attempt.result.attempts) == ("confirmed", 7, 1)


def test_no_that_comes_when_the_time_is_up_is_the_reason() -> None:
    attempt = late_word(Nacked("full"))
    assert attempt.failed(CallTimedOut("late"), is_alone=True) is not None
    assert attempt.confirmation is None
    attempt.give_up()
    assert attempt.result is not None
    assert isinstance(attempt.result.error, Nacked)
