"""The ids that a message carries are found among its properties, whatever else is there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.row_format import events_of
from warrenmq.events.ids import MESSAGE_ID_KEY, key_hash, uid_text
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.tracing.trace_ids import is_republished, message_ids_of, priority_of, sampling_hash

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
names = st.text(st.characters(codec="utf-8"), max_size=40)


def told_of(header: bytes) -> Event:
    """A row of a message with this header."""
    rows = Rows()
    context = rows.context_of(None, None, None, None, None, 0)
    rows.put(1, 0, False, context, 1, 1, 1, message_ids_of(header), 0, -1, -1, 0, priority_of(header))
    return events_of(rows)[0]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": names,
            "content_encoding": names,
            "headers": st.dictionaries(names, st.integers(0, 9) | names, max_size=4),
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 255),
            "correlation_id": names,
            "reply_to": names,
            "expiration": names,
            "message_id": names,
            "type": names,
            "app_id": names,
        },
    )
)
def test_ids_and_priority_are_those_of_the_publisher(given: dict[str, Any]) -> None:
    header = content_header(0, BasicProperties(**given))
    told = told_of(header)
    assert (told.message_id, told.correlation_id) == (given.get("message_id"), given.get("correlation_id"))
    assert told.priority == (given.get("priority") or None)
    key = given.get("message_id", given.get("correlation_id"))
    if key is not None:
        assert sampling_hash(header, MESSAGE_ID_KEY) == key_hash(MESSAGE_ID_KEY, key.encode())


@pytest.mark.parametrize("others", [{}, {"a": 1}, {"traceparents": "x", "b": {"c": [1]}}])
def test_a_traceparent_has_trace_and_span(others: dict[str, Any]) -> None:
    header = content_header(0, BasicProperties(headers=others | {"traceparent": PARENT}, message_id="m"))
    told = told_of(header)
    assert (told.trace_id, told.span_id, told.message_id) == (PARENT[3:35], PARENT[36:52], "m")


@pytest.mark.parametrize("value", ["", "00-xyz", PARENT.replace("b7ad6b7169203331", "0" * 16), 5, b"\xff" * 300])
def test_a_traceparent_that_is_none_is_passed_over(value: Any) -> None:
    told = told_of(content_header(0, BasicProperties(headers={"traceparent": value})))
    assert (told.trace_id, told.span_id) == (None, None)


def test_bytes_that_are_no_text_are_replaced() -> None:
    header = content_header(0, BasicProperties(message_id="cafe")).replace(b"cafe", b"caf\xe9")
    assert told_of(header).message_id == "caf\ufffd"


@pytest.mark.parametrize(
    ("headers", "source"),
    [
        ({"x-death": []}, 0),
        ({"x-warren-source-id": uid_text(12345)}, 12345),
        ({"x-warren-source-id": uid_text(12345), "x-death": [{"queue": "q"}]}, 12345),
    ],
)
def test_a_message_may_say_that_it_was_here_before(headers: dict[str, Any], source: int) -> None:
    header = content_header(0, BasicProperties(headers=headers))
    assert is_republished(header)
    assert (told_of(header).source_uid or 0) == source


@pytest.mark.parametrize("headers", [None, {}, {"x-deaths": [1]}, {"x-warren-source-id": "no uid"}, {"x-death": 1}])
def test_most_messages_were_not(headers: dict[str, Any] | None) -> None:
    header = content_header(0, BasicProperties(headers=headers))
    assert not is_republished(header)
    assert told_of(header).source_uid is None
