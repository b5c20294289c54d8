"""What becomes of a message after its handler, and how batches are acked: no broker, no waiting."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

import pytest

from warrenmq.client.delivery import Delivery, Settler
from warrenmq.client.delivery_batch import PullBuffer
from warrenmq.client.errors import ChannelClosed, CloseReason, Misuse
from warrenmq.client.handling import Handler, Reject, Reply, Requeue, consumer, reply_for, settle, verdict_after
from warrenmq.client.parking import attempts_of, parked_properties
from warrenmq.protocol.properties import BasicProperties, content_header


class Notes(Settler):
    """A channel that records calls. Tags up to `offset` are of an earlier link."""

    def __init__(self, offset: int = 0) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.offset = offset
        self.is_closed = False

    def ack(self, tag: int, multiple: bool = False) -> bool:
        return self._say("ack", tag, multiple)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> bool:
        return self._say("nack", tag, multiple, requeue)

    def reject(self, tag: int, requeue: bool = True) -> bool:
        return self._say("reject", tag, requeue)

    def is_stale(self, tag: int) -> bool:
        return tag <= self.offset

    def _say(self, *words: Any) -> bool:
        if self.is_closed:
            raise ChannelClosed(CloseReason("server"))
        self.said.append(words)
        return True


def delivery(settler: Settler, tag: int = 1, *, redelivered: bool = False, **properties: Any) -> Delivery:
    header = content_header(0, BasicProperties(**properties))
    return Delivery(settler, None, "tag", tag, redelivered, "", "q", header, b"")


def handler(**settings: Any) -> Handler:
    return consumer("q", **settings)(lambda delivery: None)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.mark.parametrize(
    ("retries", "attempts", "verdict"), [(16, 1, "retry"), (16, 16, "retry"), (16, 17, "park"), (0, 1, "park")]
)
def test_message_is_retried_and_then_parked(notes: Notes, retries: int, attempts: int, verdict: str) -> None:
    chosen = handler(retries=retries, on_error=lambda *_: None)
    assert verdict_after(chosen, delivery(notes), ValueError(), attempts) == verdict


def test_attempts_are_those_that_the_broker_counts(notes: Notes) -> None:
    assert attempts_of(delivery(notes)) == 1
    assert attempts_of(delivery(notes, redelivered=True)) == 2
    assert attempts_of(delivery(notes, redelivered=True, headers={"x-delivery-count": 4})) == 5


def test_broker_is_asked_for_the_same_retries() -> None:
    assert handler(retries=20, interval=0.5, longest=9, jitter=0).retry_arguments() == {
        "x-retry-max": 20,
        "x-retry-delay": 500,
        "x-retry-backoff": "exponential",
        "x-retry-max-delay": 9000,
        "x-retry-jitter": 0.0,
    }
    assert handler(backoff=1).retry_arguments()["x-retry-backoff"] == "fixed"


def test_restarts_of_a_consumer_do_not_use_up_few_retries() -> None:
    assert handler(retries=1).retry_arguments()["x-retry-max"] == 16


@pytest.mark.parametrize("chosen", [{"backoff": 1.5}, {"retries": 0}, {"dead_queue": None}, {"auto_ack": True}])
def test_broker_is_not_asked_for_retries_that_it_makes_differently(chosen: dict[str, Any]) -> None:
    assert handler(**chosen).retry_arguments() == {}


def test_without_a_dead_queue_the_message_is_rejected_and_logged(
    notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = handler(dead_queue=None, retries=0)
    assert verdict_after(chosen, delivery(notes, message_id="m-1"), ValueError("bad"), 1) == "reject"
    assert "message 'm-1' of queue 'q' was dropped" in caplog.text


def test_failed_message_with_auto_ack_is_parked_at_once(notes: Notes) -> None:
    assert verdict_after(handler(auto_ack=True), delivery(notes), ValueError("bad"), 1) == "park"


def test_message_that_the_handler_settled_is_not_parked(notes: Notes) -> None:
    message = delivery(notes, redelivered=True)
    message.ack()
    assert verdict_after(handler(on_error=lambda *_: "park"), message, ValueError(), 1) == "ack"


def test_message_of_a_stream_is_only_ever_acked(notes: Notes) -> None:
    message = delivery(notes, headers={"x-stream-offset": 7})
    settle(handler(), message, "requeue")
    assert notes.said == []
    settle(handler(), message, "reject")
    assert notes.said == [("ack", 1, False)]


def test_dead_queue_is_named_after_the_queue() -> None:
    def dead_queue(queue: str, **settings: Any) -> str | None:
        return consumer(queue, **settings)(print).dead_queue

    assert dead_queue("orders") == "orders.dead"
    assert dead_queue("orders", dead_queue="trouble") == "trouble"
    assert dead_queue("orders", dead_queue=None) is None
    assert dead_queue("amq.gen-x", dead_queue="trouble") == "trouble"
    for queue, name in (("orders", "orders"), ("orders", ""), ("q" * 252, "{queue}.dead")):
        with pytest.raises(Misuse):
            dead_queue(queue, dead_queue=name)


@pytest.mark.parametrize("queue", ["", "amq.gen-x"])
def test_dropping_messages_of_a_generated_queue_must_be_asked_for(queue: str) -> None:
    with pytest.raises(Misuse, match="dead_queue=None"):
        consumer(queue)(print)
    assert consumer(queue, dead_queue=None)(print).dead_queue is None


def test_parked_copy_keeps_the_properties_and_contains_the_error(notes: Notes) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    given = {"content_type": "text/plain", "message_id": "m-1", "correlation_id": "c", "reply_to": "r", "priority": 3}
    headers = {"mine": 1, "CC": ["elsewhere"], "BCC": ["more"], "x-delivery-count": 4}
    message = delivery(notes, headers=headers, expiration="10", user_id="anna", **given)
    copy = parked_properties(handler(), message, ValueError("x" * 5000 + "\ud800"), 5)
    assert {name: getattr(copy, name) for name in given} == given
    assert (copy.delivery_mode, copy.expiration, copy.user_id) == (2, None, None)
    assert copy.headers is not None
    told = dict(copy.headers)
    assert isinstance(told.pop("x-failed-at"), datetime)
    assert told.pop("x-exception-traceback").endswith("xxx?\n")
    assert told == {
        "mine": 1,
        "x-delivery-count": 4,
        "x-original-cc": ["elsewhere"],
        "x-original-expiration": "10",
        "x-original-user-id": "anna",
        "x-exception-type": "ValueError",
        "x-exception-message": "x" * 1000,
        "x-attempts": 5,
        "x-original-queue": "q",
        "x-original-exchange": "",
        "x-original-routing-key": "q",
    }
    copy.encode()
    unspeakable = parked_properties(handler(), delivery(notes), Unspeakable(), 2)
    assert unspeakable.headers is not None
    assert unspeakable.headers["x-exception-type"].endswith("Unspeakable")
    assert unspeakable.headers["x-attempts"] == 2


def test_traceback_of_a_deep_error_ends_where_it_was_raised(notes: Notes) -> None:
    def fall(depth: int) -> None:
        if depth:
            go_on(depth - 1)
        raise ValueError("the ground")

    def go_on(depth: int) -> None:  # Python shortens the traceback of one function that calls itself
        fall(depth)

    with pytest.raises(ValueError, match="the ground") as raised:
        fall(200)
    copy = parked_properties(handler(), delivery(notes), raised.value, 1)
    assert copy.headers is not None
    text = copy.headers["x-exception-traceback"]
    assert len(text) <= 8000
    assert 'raise ValueError("the ground")' in text


def test_copy_of_a_message_that_cannot_be_read_has_the_error_alone(notes: Notes) -> None:
    message = Delivery(notes, None, "tag", 1, False, "", "q", b"\0\x3c" + bytes(10) + b"\xff\xff\1", b"")
    copy = parked_properties(handler(), message, ValueError("bad"), 1)
    assert copy.headers is not None
    assert copy.headers["x-exception-message"] == "bad"


def test_exceptions_decide_by_themselves(notes: Notes) -> None:
    assert verdict_after(handler(), delivery(notes), Reject(), 1) == "park"
    assert verdict_after(handler(dead_queue=None), delivery(notes), Reject(), 1) == "reject"
    assert verdict_after(handler(retries=0), delivery(notes), Requeue(), 1) == "requeue"


def test_on_error_receives_the_error_and_may_decide(notes: Notes) -> None:
    heard = []
    error, message = ValueError("bad"), delivery(notes)
    chosen = handler(on_error=lambda *args: heard.append(args) or "ack")
    assert verdict_after(chosen, message, error, 1) == "ack"
    assert heard == [(message, error)]


def test_on_error_that_fails_leaves_it_to_the_policy(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("worse")

    with caplog.at_level(logging.ERROR, "warrenmq.client"):
        assert verdict_after(handler(on_error=fail, retries=0), delivery(notes), ValueError(), 1) == "park"
    assert "worse" in caplog.text


def test_error_without_on_error_is_logged(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "warrenmq.client"):
        verdict_after(handler(), delivery(notes), ValueError("who hears me"), 1)
    assert "who hears me" in caplog.text


def test_verdict_is_sent_to_the_broker(notes: Notes) -> None:
    for tag, verdict in enumerate(("ack", "reject", "requeue"), start=1):
        settle(handler(), delivery(notes, tag), verdict)  # type: ignore[arg-type]
    assert notes.said == [("ack", 1, False), ("reject", 2, False), ("reject", 3, True)]


def test_nothing_is_settled_with_auto_ack_or_if_the_handler_did(notes: Notes) -> None:
    settle(handler(auto_ack=True), delivery(notes), "ack")
    done = delivery(notes, 2)
    done.nack()
    settle(handler(), done, "ack")
    assert notes.said == [("nack", 2, False, True)]


def test_closed_channel_does_not_fail_the_handler(notes: Notes) -> None:
    notes.is_closed = True
    settle(handler(), delivery(notes), "ack")


def test_handler_can_be_called_as_the_function_it_is(notes: Notes) -> None:
    @consumer("q")
    def body_size(message: Delivery) -> int:
        return len(message.body)

    assert body_size(delivery(notes)) == 0
    assert body_size.name.endswith("body_size")


def test_async_functions_are_known_as_such() -> None:
    async def handle(message: Delivery) -> None: ...

    class Callable:
        async def __call__(self, message: Delivery) -> None: ...

    assert consumer("q")(handle).is_async
    assert consumer("q")(Callable()).is_async
    assert not handler().is_async


def test_prefetch_is_shared_among_the_channels() -> None:
    assert handler(prefetch=20, concurrency=4).channel_prefetch == 5
    assert handler(prefetch=2, concurrency=4).channel_prefetch == 1
    assert handler(prefetch=0, concurrency=4).channel_prefetch == 0


@pytest.mark.parametrize("wrong", [{"prefetch": -1}, {"concurrency": 0}])
def test_invalid_handler_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        handler(**wrong)


# -- answers


def test_answer_goes_to_who_asked_with_their_correlation_id(notes: Notes) -> None:
    asked = delivery(notes, reply_to="back", correlation_id="7")
    address, reply = reply_for(asked, b"42") or ("", Reply(b""))
    assert (address, reply.body, reply.properties.correlation_id) == ("back", b"42", "7")


def test_answer_may_have_properties_of_its_own(notes: Notes) -> None:
    asked = delivery(notes, reply_to="back", correlation_id="7")
    answer = reply_for(asked, Reply("{}", BasicProperties(content_type="application/json")))
    assert answer is not None
    assert answer[1].properties == BasicProperties(content_type="application/json", correlation_id="7")


def test_one_reply_may_answer_many(notes: Notes) -> None:
    done = Reply(b"done")
    for number in ("1", "2"):
        answer = reply_for(delivery(notes, reply_to="back", correlation_id=number), done)
        assert answer is not None
        assert answer[1].properties.correlation_id == number


def test_no_reply_without_reply_to_or_result(notes: Notes) -> None:
    assert reply_for(delivery(notes), b"42") is None
    assert reply_for(delivery(notes, reply_to="back"), None) is None


def test_reply_that_is_not_a_body_is_misuse(notes: Notes) -> None:
    with pytest.raises(Misuse, match="not int"):
        reply_for(delivery(notes, reply_to="back"), 42)


# -- batches


def pulled(notes: Notes, tags: range) -> PullBuffer:
    made = PullBuffer()
    for tag in tags:
        made.add(delivery(notes, tag))
    return made


def tags_of(batch: list[Delivery]) -> list[int]:
    return [each.delivery_tag for each in batch]


def test_batch_is_acked_with_one_ack(notes: Notes) -> None:
    source = pulled(notes, range(1, 8))
    first, second = source.take(3), source.take(100)
    assert (tags_of(first), tags_of(second)) == ([1, 2, 3], [4, 5, 6, 7])
    first.ack_all()
    second.ack_all()
    second.ack_all()
    assert notes.said == [("ack", 3, True), ("ack", 7, True)]


def test_ack_of_a_batch_does_not_cover_an_older_one(notes: Notes) -> None:
    source = pulled(notes, range(1, 5))
    first, second = source.take(2), source.take(2)
    second.ack_all()
    assert notes.said == [("ack", 3, False), ("ack", 4, False)]
    first.ack_all()
    assert notes.said[2:] == [("ack", 2, True)]


def test_batch_leaves_alone_what_was_settled_before(notes: Notes) -> None:
    batch = pulled(notes, range(1, 5)).take(10)
    batch[0].ack()
    batch[3].reject(requeue=False)
    batch.ack_all()
    assert notes.said == [("ack", 1, False), ("reject", 4, False), ("ack", 3, True)]


def test_batch_can_be_given_back(notes: Notes) -> None:
    batch = pulled(notes, range(1, 3)).take(10)
    batch[0].ack()
    batch.nack_all()
    assert notes.said == [("ack", 1, False), ("nack", 2, False, True)]


def test_stale_deliveries_of_a_lost_link_are_neither_delivered_nor_acked(notes: Notes) -> None:
    source = pulled(notes, range(1, 7))
    first = source.take(2)
    notes.offset = 4
    source.add(delivery(notes, 7))
    assert tags_of(source.take(10)) == [5, 6, 7]
    first.ack_all()
    assert notes.said == []
    notes.offset = 7
    assert not source.has_any()
