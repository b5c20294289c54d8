"""Notes in the biography of a message, and the biography over HTTP, on both faces."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import warrenmq
from tests.client.behaviour.faces import Inbox
from tests.client.conftest import Connect, own_broker_only
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from warrenmq import client
from warrenmq.client import aio
from warrenmq.client.notes import CAPABILITY

from .making import make

pytestmark = own_broker_only


@pytest.fixture(scope="module")
def traced() -> Iterator[warrenmq.Broker]:
    """A broker that records all events and serves HTTP."""
    with warrenmq.Broker(http=True, trace="all") as broker:
        yield broker


@pytest.fixture
def http_url(traced: warrenmq.Broker) -> str:
    return traced.http_url.replace("http://", "http://guest:guest@")


@pytest.fixture
def channel(connect: Connect, traced: warrenmq.Broker) -> Any:
    channel = connect(traced.url).channel()
    channel.queue_declare("orders")
    channel.queue_purge("orders")
    return channel


@pytest.fixture
def noting(channel: Any) -> Any:
    """The channel, if the broker keeps notes."""
    if not channel.connection.has_capability(CAPABILITY):
        pytest.skip("this broker keeps no notes")
    return channel


@pytest.fixture
def message_id() -> str:
    """An id that is escaped in a URL."""
    return f"order/{uuid.uuid4().hex}"


def trace(face: Any, message_id: str, url: str) -> client.Biography:
    found = client.trace(message_id, url) if face.name == "blocking" else asyncio.run(aio.trace(message_id, url))
    assert isinstance(found, client.Biography)
    return found


def publish(channel: Any, message_id: str | None) -> Any:
    channel.publish("", "orders", b"x", client.Properties(message_id=message_id))
    return wait_until(lambda: channel.get("orders"), "it is there")


def notes_of(face: Any, url: str, message_id: str, count: int) -> list[Any]:
    """Return the notes of a message when there are that many."""

    def find() -> list[Any] | None:
        try:
            events = trace(face, message_id, url).events
        except client.RequestFailed:
            return None
        notes = [event for event in events if event["kind"] == "noted"]
        return notes if len(notes) >= count else None

    return wait_until(find, "the notes are there")


# -- the biography


def test_trace_returns_what_happened_to_a_message(face: Any, channel: Any, http_url: str, message_id: str) -> None:
    publish(channel, message_id).ack()

    def is_acked() -> bool:
        try:
            return trace(face, message_id, http_url).events[-1]["kind"] == "acked"
        except client.RequestFailed:
            return False

    wait_until(is_acked, "the event log has the ack")
    found = trace(face, message_id, http_url)
    assert (found.message_id, found.is_complete, found.is_truncated) == (message_id, True, False)
    assert [event["kind"] for event in found.events] == ["published", "routed", "enqueued", "delivered", "acked"]
    assert [leg["queue"] for leg in found.legs] == ["orders"]
    assert trace(face, found.uid, http_url) == found


def test_trace_of_an_unknown_message_says_so(face: Any, http_url: str) -> None:
    with pytest.raises(client.RequestFailed, match="no events of a message 'nobody'") as failed:
        trace(face, "nobody", http_url)
    assert failed.value.status == 404


def test_trace_with_a_wrong_password_says_so(face: Any, http_url: str, message_id: str) -> None:
    with pytest.raises(client.RequestFailed) as failed:
        trace(face, message_id, http_url.replace("guest:guest", "guest:wrong"))
    assert failed.value.status == 401


def test_trace_of_a_port_that_is_closed_or_not_http_says_so(
    face: Any, traced: warrenmq.Broker, message_id: str
) -> None:
    with pytest.raises(client.RequestFailed, match="cannot reach a broker at http://127"):
        trace(face, message_id, f"http://127.0.0.1:{free_port()}")
    with pytest.raises(client.RequestFailed, match="not an HTTP URL; use one such as"):
        trace(face, message_id, traced.url)
    with pytest.raises(client.Misuse):
        trace(face, "", traced.http_url)


# -- notes


def test_note_is_in_the_biography(face: Any, noting: Any, http_url: str, message_id: str) -> None:
    delivery = publish(noting, message_id)
    assert delivery.note("charged the card: 5 €")
    delivery.ack()
    (note,) = notes_of(face, http_url, message_id, 1)
    assert note["note"] == "charged the card: 5 €"


def test_note_after_the_ack_needs_an_id(face: Any, noting: Any, http_url: str, message_id: str) -> None:
    anonymous = publish(noting, None)
    anonymous.ack()
    assert not anonymous.note("nobody knows what about")
    delivery = publish(noting, message_id)
    delivery.ack()
    assert delivery.note("sent the mail")
    assert notes_of(face, http_url, message_id, 1)[0]["note"] == "sent the mail"
    assert noting.is_open


def test_note_on_what_was_acked_with_others_or_by_the_broker_closes_no_channel(face: Any, noting: Any) -> None:
    first, second = publish(noting, None), publish(noting, None)
    second.ack(multiple=True)
    assert not first.note("too late")
    noting.publish("", "orders", b"x")
    taken = wait_until(lambda: noting.get("orders", auto_ack=True), "it is there")
    assert not taken.note("too late")
    noting.queue_declare("orders", passive=True)


def test_notes_disturb_no_confirms(face: Any, noting: Any, http_url: str, message_id: str) -> None:
    delivery = publish(noting, message_id)
    noting.confirm_select()
    confirmations = []
    for number in range(3):
        confirmations.append(noting.publish("", "orders", b"x"))
        assert delivery.note(f"line {number}")
    for each in confirmations:
        each.result(30)
    noting.wait_for_confirms()
    notes = notes_of(face, http_url, message_id, 3)
    assert [each["note"] for each in notes] == ["line 0", "line 1", "line 2"]


def test_note_in_a_transaction_is_kept_if_it_commits(face: Any, noting: Any, http_url: str, message_id: str) -> None:
    delivery = publish(noting, message_id)
    with pytest.raises(KeyError), noting.transaction(redeliver=False):
        delivery.note("rolled back")
        raise KeyError
    with noting.transaction(delivery):
        delivery.note("committed")
    assert [each["note"] for each in notes_of(face, http_url, message_id, 1)] == ["committed"]


def test_error_of_a_handler_is_a_note(face: Any, noting: Any, http_url: str, message_id: str) -> None:
    def charge(delivery: Any) -> None:
        raise ValueError("the card has expired" * 100)

    with make(face, "Service", noting.connection, client.consumer("orders", retries=1, interval=0.01)(charge)):
        noting.publish("", "orders", b"x", client.Properties(message_id=message_id))
        notes = notes_of(face, http_url, message_id, 2)
    assert "charge failed, attempt 1 of 2: ValueError: the card has expired" in notes[0]["note"]
    assert "attempt 2 of 2" in notes[1]["note"]
    assert len(notes[0]["note"]) == 1000


def test_service_that_may_not_write_notes_goes_on_without_them(face: Any, connect: Connect) -> None:
    seen = Inbox()

    def handle(delivery: Any) -> None:
        seen(delivery)
        if seen.count < 3:
            raise ValueError("not yet")

    with warrenmq.Broker() as broker:
        assert broker._node is not None
        broker._node.broker.users.add("reader", "secret", [])
        broker._node.broker.users.grant("reader", "/", ".*", "^queue$", ".*")
        admin = connect(broker.url).channel()
        admin.queue_declare("queue")
        connection = connect(broker.url.replace("guest:guest", "reader:secret"))
        connection.server_properties["capabilities"][CAPABILITY] = True
        with make(face, "Service", connection, client.consumer("queue", interval=0.01)(handle)):
            admin.publish("", "queue", b"x")
            wait_until(lambda: seen.count == 3, "it is handled")
        wait_until(lambda: admin.message_count("queue") == 0, "it is acked")
    first, second, third = seen.take(3)
    assert first.channel is not second.channel  # closed because of the note
    assert second.channel is third.channel


def test_broker_without_notes_is_sent_none(channel: Any) -> None:
    channel.connection.server_properties["capabilities"].pop(CAPABILITY, None)
    delivery = publish(channel, "x")
    assert delivery.note("to nobody") is False
    for wrong in ("", "x" * 1001, "€" * 334):
        with pytest.raises(client.Misuse, match="1 to 1,000 bytes"):
            delivery.note(wrong)
