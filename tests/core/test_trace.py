"""The ids that a message carries are found among its properties, whatever else is there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.trace import is_republished, mark_of, sampling_key, trace_of
from warrenmq.events.ids import uid_text
from warrenmq.protocol.properties import BasicProperties, content_header

MARK = mark_of(1, 1)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
names = st.text(st.characters(codec="utf-8"), max_size=40)


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
def test_the_ids_are_those_of_the_publisher(given: dict[str, Any]) -> None:
    header = content_header(0, BasicProperties(**given))
    trace = trace_of(mark_of(7, 8), header)
    assert (trace.uid, trace.publish_time) == (7, 8)
    assert trace.message_id == (given["message_id"].encode() if "message_id" in given else None)
    assert trace.correlation_id == (given["correlation_id"].encode() if "correlation_id" in given else None)
    key = given.get("message_id", given.get("correlation_id"))
    assert sampling_key(header) == (None if key is None else key.encode())


@pytest.mark.parametrize("others", [{}, {"a": 1}, {"traceparents": "x", "b": {"c": [1]}}])
def test_a_traceparent_gives_trace_and_span(others: dict[str, Any]) -> None:
    header = content_header(0, BasicProperties(headers=others | {"traceparent": PARENT}, message_id="m"))
    trace = trace_of(MARK, header)
    assert (trace.trace_id, trace.span_id) == (PARENT[3:35].encode(), PARENT[36:52].encode())
    assert trace.message_id == b"m"


@pytest.mark.parametrize("value", ["", "00-xyz", PARENT.replace("b7ad6b7169203331", "0" * 16), 5, b"\xff" * 300])
def test_a_traceparent_that_is_none_is_passed_over(value: Any) -> None:
    trace = trace_of(MARK, content_header(0, BasicProperties(headers={"traceparent": value})))
    assert (trace.trace_id, trace.span_id) == (None, None)


def test_octets_that_are_no_text_are_replaced() -> None:
    header = content_header(0, BasicProperties(message_id="cafe")).replace(b"cafe", b"caf\xe9")
    assert trace_of(MARK, header).message_id == "caf\ufffd".encode()


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
    assert trace_of(MARK, header).source_uid == source


@pytest.mark.parametrize("headers", [None, {}, {"x-deaths": [1]}, {"x-warren-source-id": "no uid"}, {"x-death": 1}])
def test_most_messages_were_not(headers: dict[str, Any] | None) -> None:
    header = content_header(0, BasicProperties(headers=headers))
    assert not is_republished(header)
    assert trace_of(MARK, header).source_uid == 0
