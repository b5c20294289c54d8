"""Attacks on tracing over HTTP, on a running broker: each is refused or answered, and clients go on being served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import warrenmq
from warrenmq import client
from warrenmq.events.batch import EventBatch
from warrenmq.events.schema import Event
from warrenmq.tracing import reader
from warrenmq.tracing.reader import ReadLimits

GUEST = ("guest", "guest")
JSON = {"Content-Type": "application/json"}
RULES = "/api/trace-rules"


def ask(broker: warrenmq.Broker, method: str, path: str, **further: Any) -> httpx.Response:
    return httpx.request(method, broker.http_url + path, auth=GUEST, timeout=60, **further)


def names_of_rules(broker: warrenmq.Broker) -> list[str]:
    answer = ask(broker, "GET", RULES)
    assert answer.status_code == 200, answer.text
    return [rule["name"] for rule in answer.json()["rules"]]


def test_an_expression_with_exponential_backtracking_elsewhere_blocks_no_client(tmp_path: Path) -> None:
    queue = "a" * 200 + "!"
    for _ in range(2):  # the rule is there after a restart
        with warrenmq.Broker(http=True, data_dir=tmp_path) as broker:
            rule = {"queue": "^(a+)+$", "header": {"tenant": "^(a+)+$"}}
            assert ask(broker, "PUT", f"{RULES}/attack", json=rule).status_code in (201, 204)
            with client.connect(broker.url) as connection, connection.channel() as channel:
                channel.confirm_select()
                channel.queue_declare(queue)
                properties = client.Properties(headers={"tenant": queue})
                channel.publish("", queue, b"", properties).result(30)
                channel.queue_delete(queue)


@pytest.mark.parametrize(
    "body",
    [
        b'{"queue": "' + b"(" * 5_000 + b")" * 5_000 + b'"}',
        b'{"queue": "' + b"(" * 450 + b"a+" + b")+" * 450 + b"{999}" + b'"}',
        b'{"ratio": NaN}',
        b'{"ratio": 1e999}',
        b'{"ratio": -1e999}',
        b'{"header": {"a": NaN}}',
        b'{"header": {"a": 1e999}}',
        b'{"header": {"a": -Infinity}}',
        b'{"header": {"a": 99999999999999999999999}}',
        b'{"header": {"a": ' + b"9" * 5_000 + b"}}",
        b'{"header": {"' + b"a" * 300 + b'": 1}}',
        b'{"header": ' + b'{"a":' * 50_000 + b"}" * 50_000 + b"}",
        b'{"queue": "\\ud800"}',
        b'{"header": {"\\udcff": "\\ud800+"}}',
        b'{"vhost": ["a"]}',
        b'{"queue": "\xff"}',
    ],
)
def test_a_rule_that_is_refused_is_not_listed(traced: warrenmq.Broker, body: bytes) -> None:
    answer = ask(traced, "PUT", f"{RULES}/bad", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request"), answer.text
    assert "bad" not in names_of_rules(traced)


@pytest.mark.parametrize(
    "body",
    [
        b'{"queue": "^\\udcff+$"}',
        b'{"header": {"\\udcff": "a+"}}',
        b'{"header": {"a": 9223372036854775807}, "ratio": 1e-300}',
        b'{"header": {"a": 1.5}, "ratio": -0.0}',
    ],
)
def test_an_odd_rule_is_kept_and_listed_and_deleted(traced: warrenmq.Broker, body: bytes) -> None:
    answer = ask(traced, "PUT", f"{RULES}/odd", content=body, headers=JSON)
    assert answer.status_code == 201, answer.text
    assert "odd" in names_of_rules(traced)
    with client.connect(traced.url) as connection, connection.channel() as channel:
        channel.confirm_select()
        channel.publish("", "nowhere", b"", client.Properties(headers={"a": 1.5})).result(30)
    assert ask(traced, "DELETE", f"{RULES}/odd").status_code == 204


@pytest.mark.parametrize(
    "query",
    [
        "from=999999999w",
        "to=999999999d",
        "from=0001-01-01T00:00:00%2B23:59",
        "from=-0001-01-01",
        "from=NaN",
        "to=1e999",
        "cursor=ffffffffffffffff-ffffffffffffffff-ffffffff",
        "limit=NaN",
    ],
)
def test_a_search_that_cannot_be_decoded_is_refused(traced: warrenmq.Broker, query: str) -> None:
    answer = ask(traced, "GET", f"/api/traces?{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request"), answer.text


@pytest.mark.parametrize(
    "query",
    [
        "from=1900w&to=9999-12-31T23:59:59Z",
        "queue=%ff%00&exchange=%ed%a0%80",
        "correlation_id=" + "x" * 2_000,
        "cursor=0-0-ffffffff",
    ],
)
def test_an_odd_search_is_answered(traced: warrenmq.Broker, query: str) -> None:
    assert ask(traced, "GET", f"/api/traces?{query}").status_code == 200


def test_a_popular_message_id_does_not_stall_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many messages under one id, and many readers of it at once: each answer is bounded, and few are under way."""
    decoded: list[int] = []
    decode = reader._decode

    def counting(batch: EventBatch, row: int) -> Event:
        decoded.append(row)
        return decode(batch, row)

    monkeypatch.setattr(reader, "_decode", counting)
    with warrenmq.Broker(http=True, trace="all") as broker:
        traces = broker._running_node().tracing.traces
        traces._limits = ReadLimits(events=500)
        with client.connect(broker.url) as connection, connection.channel() as channel:
            channel.confirm_select()
            channel.queue_declare("crowd")
            properties = client.Properties(message_id="popular")
            published = [channel.publish("", "crowd", b"", properties) for _ in range(2_000)]
            published[-1].result(60)
            with ThreadPoolExecutor(8) as readers:
                answers = [readers.submit(ask, broker, "GET", "/api/traces/popular") for _ in range(8)]
                while not all(answer.done() for answer in answers):
                    channel.publish("", "crowd", b"", client.Properties(message_id="good")).result(60)
        told = [answer.result().json() for answer in answers]
        assert [(len(each["events"]), each["truncated"]) for each in told] == [(500, True)] * 8
        assert len(decoded) == 8 * 500
        good = ask(broker, "GET", "/api/traces/good").json()
        assert good["events"][0]["kind"] == "published"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with warrenmq.Broker(http=True, data_dir=tmp_path_factory.mktemp("traced"), trace="all") as broker:
        with client.connect(broker.url) as connection, connection.channel() as channel:
            channel.confirm_select()
            channel.queue_declare("q")
            channel.publish("", "q", b"", client.Properties(message_id="m")).result(30)
        yield broker
