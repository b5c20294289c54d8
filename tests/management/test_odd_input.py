"""Odd parameters, paths and bodies against the HTTP side of a real broker: refused or served, but never a 500."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from warrenmq.client import connect
from warrenmq.embedded import Broker

JSON = {"Content-Type": "application/json"}
TEXTS = (
    *("", "NaN", "inf", "1e999", "-1", "0", "999999999", "9999999999", "²", "1_000", "-", "T", "..", "[", "x" * 5000),
    *("%00", "%ff", "%ed%a0%80", "a%0ab", "%f0%9f%90%87", "%2e%2e%2f", "f" * 32),
)
TIMES = (
    *("0001-01-01T00:00:00+14:00", "0001-01-01", "9999-12-31T23:59:59.999999-14:00", "9999-12-31", "10000-01-01"),
    *("999999999w", "0s", "1969-12-31", "2026-W01-1", "2026-01-01T24:00:00", "20260101T000000.1234567+23:59:59.999999"),
)
PARAMETERS = {
    "/api/traces": (
        *("correlation_id", "vhost", "queue", "exchange", "routing_key", "cursor", "trace_id", "kind", "from", "to"),
        *("limit", "x"),
    ),
    "/api/analysis/throughput": ("from", "to", "window", "limit", "after"),
    "/api/streams": ("vhost",),
}
PATHS = ("/api/traces/", "/api/trace-rules/", "/api/firehose/", "/api/analysis/", "/ui/", "/api/", "/")
BODIES = (
    *(b"", b"[]", b"{", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"[" * 200_000, b'{"a":' * 200_000),
    *(b'{"ratio":%s}' % number for number in (b"NaN", b"Infinity", b"1e999", b"-1e999", b"1e-999", b"9" * 400)),
    *(b'{"ratio":%s}' % number for number in (b"9" * 5000, b'"NaN"', b"null", b"true", b"[]")),
    b'{"header":' + b'{"a":' * 500 + b"1" + b"}" * 501,
    b'{"header":{"a":' + b"[" * 40 + b"]" * 40 + b"}}",
    b'{"header":{"a":"\\ud800"}}',
    b'{"header":{"a":NaN}}',
    b'{"header":{"a":1e999}}',
    b'{"header":{"x":123456789012345678901234567890}}',
    b'{"queue":"\\ud800"}',
    b'{"queue":"\\udc80"}',
    b'{"\\ud800":1}',
    b'{"username":"guest","password":"\\ud800"}',
    b'{"username":"\\udfff","password":"x"}',
    b'{"username":"a\\u0000","password":"\\udc80"}',
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with Broker(http=True, trace="all") as broker:
        with connect(broker.url) as connection, connection.channel() as channel:
            channel.queue_declare("kept")
            channel.confirm_select()
            channel.publish("", "kept", b"x").result(30)
        auth = ("guest", "guest")
        with httpx.Client(base_url=broker.http_url, auth=auth, headers={"Connection": "keep-alive"}, timeout=60) as web:
            yield web


def is_a_bug(response: httpx.Response) -> bool:
    return response.status_code >= 500


@pytest.mark.parametrize("path", PARAMETERS)
def test_parameters(client: httpx.Client, path: str) -> None:
    asked = [f"{path}?{name}={value}" for name in PARAMETERS[path] for value in TEXTS + TIMES]
    assert [url for url in asked if is_a_bug(client.get(url))] == []


@pytest.mark.parametrize("path", PATHS)
def test_paths(client: httpx.Client, path: str) -> None:
    assert [value for value in TEXTS if is_a_bug(client.get(path + value))] == []


@pytest.mark.parametrize(("method", "path"), [("PUT", "/api/trace-rules/odd"), ("POST", "/api/login")])
def test_bodies(client: httpx.Client, method: str, path: str) -> None:
    found = [body[:80] for body in BODIES if is_a_bug(client.request(method, path, content=body, headers=JSON))]
    assert found == []
    assert client.get("/api/trace-rules").status_code == 200


@pytest.mark.parametrize("value", TIMES[:5])
def test_what_is_kept_can_be_searched_by_any_time(client: httpx.Client, value: str) -> None:
    """Refused, or answered: a time before year 1 has no place in the answer."""
    response = client.get("/api/traces", params={"from": value})
    assert response.status_code in (200, 400)
    assert "reason" in response.json() or "traces" in response.json()
