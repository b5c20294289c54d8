"""Headers for delays, times of delivery and reports: what is accepted, and what is refused before it is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.client.errors import Misuse
from warrenmq.client.publish_headers import with_publish_headers
from warrenmq.protocol.properties import BasicProperties


def headers(**options: Any) -> dict[str, Any]:
    properties = with_publish_headers(None, **options)
    assert properties is not None
    assert properties.headers is not None
    properties.encode()
    return dict(properties.headers)


def test_without_options_the_properties_are_the_callers() -> None:
    given_properties = BasicProperties(type="order")
    assert with_publish_headers(given_properties) is given_properties
    assert with_publish_headers(None) is None


def test_headers_are_added_to_a_copy() -> None:
    original = BasicProperties(type="order", headers={"mine": 1})
    copy = with_publish_headers(original, delay=2, report_to="reports")
    assert copy is not None
    assert copy.type == "order"
    assert copy.headers == {"mine": 1, "x-delay": 2000, "x-report-to": "reports"}
    assert original.headers == {"mine": 1}


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1)), st.integers(-14, 14))
def test_datetime_is_sent_as_the_milliseconds_of_its_instant(when: datetime, offset: int) -> None:
    aware = when.replace(tzinfo=timezone(timedelta(hours=offset)))
    sent = headers(deliver_at=aware)["x-deliver-at"]
    assert abs(datetime.fromtimestamp(sent / 1000, UTC) - aware) <= timedelta(milliseconds=1)


def test_milliseconds_and_text_are_sent_as_they_are() -> None:
    assert headers(deliver_at=1_700_000_000_123) == {"x-deliver-at": 1_700_000_000_123}
    assert headers(deliver_at="2030-01-02T03:04:05Z") == {"x-deliver-at": "2030-01-02T03:04:05Z"}
    assert headers(delay=0.0015) == {"x-delay": 2}
    assert headers(delay=0) == {"x-delay": 0}


def test_time_without_a_zone_is_refused_with_the_remedy() -> None:
    with pytest.raises(Misuse, match=r"no time zone: use datetime.now\(UTC\)"):
        headers(deliver_at=datetime(2030, 1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": True},
        {"delay": "5"},
        {"deliver_at": 1.5},
        {"deliver_at": -1},
        {"deliver_at": True},
        {"deliver_at": timedelta(seconds=1)},
        {"delay": 1, "deliver_at": 1},
        {"report_to": ""},
        {"report_to": "q" * 256},
        {"report_to": b"queue"},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        headers(**wrong)
