"""GET /api/traces: the biography of a message, and the search for messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from tests.management.asking import GUEST, LIMITED, PLAIN, Browser
from tests.management.fakes import BEGIN, UID, FakeNode, FakeReader, Telling, killed_story, purged_story, story
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.management.api.traces import event_values, leg_values, span_values
from warrenmq.management.app import create_app
from warrenmq.management.view import NodeView
from warrenmq.tracing.biography import Biography
from warrenmq.tracing.rules import TraceRule
from warrenmq.tracing.search import TracePage, TraceQuery, TracingBusy


def asked(path: str, *biographies: Biography) -> Any:
    response = Browser(FakeNode(*biographies)).get(path, auth=GUEST)
    assert response.status_code == 200, response.text
    return response.json()


def refused(path: str, node: FakeNode | None = None) -> tuple[int, str]:
    response = Browser(node).get(path, auth=GUEST)
    return response.status_code, response.json()["reason"]


def query_of(parameters: str) -> TraceQuery:
    browser = Browser()
    response = browser.get("/api/traces?" + parameters, auth=GUEST)
    assert response.status_code == 200, response.text
    return browser.node.reader.queries[0]


# -- one message -------------------------------------------------------------------------------------------------------


def test_leg_has_its_deliveries_and_consumers() -> None:
    told = asked("/api/traces/order-17", story())
    assert [(leg["queue"], leg["deliveries"], leg["consumers"]) for leg in told["legs"]] == [
        ("shipping", 2, ["packer-1", "packer-2"]),
        ("billing", 1, ["clerk"]),
        ("audit", 1, ["auditor"]),
        ("billing", 1, ["clerk"]),
    ]


def test_a_consumer_that_the_broker_was_killed_under_is_lost_and_attempts_go_on() -> None:
    told = asked("/api/traces/order-18", killed_story())
    assert [event.get("attempt") for event in told["events"]] == [None, None, 1, 2, 2]
    (leg,) = told["legs"]
    assert [(span["attempt"], span["outcome"]) for span in leg["spans"]] == [
        (1, "delivered"),
        (1, "lost"),
        (2, "acked"),
    ]
    assert (leg["waiting_us"], leg["processing_us"], leg["outcome"]) == (1_980, 3_000, "acked")


def test_a_purge_of_many_messages_says_how_many_it_dropped() -> None:
    told = asked("/api/traces/order-19", purged_story())
    assert told["events"][-1] == {
        "time": "2026-11-16T04:50:00.128476Z",
        "kind": "dropped",
        "vhost": "/",
        "queue": "shipping",
        "reason": "purged",
        "messages": 12_000,
    }
    assert (told["legs"][0]["outcome"], told["complete"]) == ("dropped", True)


def test_a_biography_lists_every_event_in_order() -> None:
    told = asked("/api/traces/order-17", story())
    assert (told["message_id"], told["uid"], told["complete"]) == ("order-17", uid_text(UID), True)
    assert [event["kind"] for event in told["events"]][:5] == [
        "published",
        "routed",
        "enqueued",
        "enqueued",
        "enqueued",
    ]
    requeued = next(event for event in told["events"] if event["kind"] == "requeued")
    assert requeued == {
        "time": "2026-11-16T04:50:00.130856Z",
        "kind": "requeued",
        "uid": uid_text(UID),
        "message_id": "order-17",
        "publish_time": "2026-11-16T04:50:00.123456Z",
        "vhost": "/",
        "exchange": "orders",
        "routing_key": "order.created.eu",
        "queue": "shipping",
        "consumer": "packer-1",
        "connection": "127.0.0.1:53422 -> 127.0.0.1:5672",
        "channel": 1,
        "size": 1843,
        "attempt": 1,
        "reason": "connection_closed",
        "correlation_id": "basket-9",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
        "latency_us": 7400,
    }


def test_a_biography_contains_waiting_and_processing_times() -> None:
    legs = asked("/api/traces/order-17", story())["legs"]
    assert [(leg["queue"], leg["waiting_us"], leg["processing_us"], leg["outcome"]) for leg in legs] == [
        ("shipping", 4080, 10100, "acked"),
        ("billing", 2879, 9000, "acked"),
        ("audit", 1778, None, "delivered"),
        ("billing", 980, 1500, "acked"),
    ]
    assert legs[0]["spans"][1] == {
        "kind": "processing",
        "begin": "2026-11-16T04:50:00.125856Z",
        "end": "2026-11-16T04:50:00.130856Z",
        "attempt": 1,
        "consumer": "packer-1",
        "outcome": "requeued",
    }


def test_a_message_without_an_id_of_its_own_is_known_by_the_brokers() -> None:
    told = asked("/api/traces/" + uid_text(UID), story(message_id=None))
    assert told["message_id"] == told["uid"] == uid_text(UID)
    assert "message_id" not in told["events"][0]


@pytest.mark.parametrize("message_id", ["a/b", "..", "?x=1", "ä €", "caf\udce9", "<script>", "50%", " "])
def test_any_text_is_a_message_id(message_id: str) -> None:
    path = "/api/traces/" + quote(message_id, safe="", errors="surrogateescape").replace(".", "%2E")
    assert asked(path, story("\ufffd".join(message_id.split("\udce9"))))["complete"]


def test_names_that_are_no_text_do_not_break_the_answer() -> None:
    assert asked("/api/traces/order-17", story(queue="caf\udce9"))["legs"][0]["queue"] == "caf\udce9"


def test_a_kind_of_a_later_broker_is_shown_by_its_number() -> None:
    told = story()
    later = replace(told, events=[replace(told.events[0], kind=99, reason=98)])
    assert asked("/api/traces/order-17", later)["events"][0]["kind"] == "kind-99"


def test_a_message_of_which_nothing_is_kept_is_not_found() -> None:
    assert refused("/api/traces/other", FakeNode(story(), rules=[TraceRule("all")])) == (
        404,
        "no events of a message 'other'",
    )
    assert refused("/api/traces/other", FakeNode())[1].endswith("; tracing is off")


def test_unreadable_event_log_is_reported() -> None:
    for path in ("/api/traces/x", "/api/traces"):
        assert refused(path, FakeNode(failure="disk gone")) == (503, "the event log cannot be read: disk gone")


def test_node_without_tracing_reports_it() -> None:
    class Without(FakeNode):
        def view(self) -> NodeView:
            return NodeView(self.broker, lambda: (True, ""), lambda: 0.0, "1", login=self.login)

    for path in ("/api/traces/x", "/api/traces", "/api/trace-rules"):
        assert refused(path, Without()) == (503, "this broker records no events")


# -- what a user may see -----------------------------------------------------------------------------------------------


def test_user_sees_only_events_of_own_vhosts() -> None:
    told = story()
    inside = [replace(event, vhost="other") if event.kind == schema.REPUBLISHED else event for event in told.events]
    browser = Browser(FakeNode(replace(told, events=inside), story("secret", UID + 1)))
    seen = browser.get("/api/traces/order-17", auth=LIMITED).json()
    assert [event["kind"] for event in seen["events"]] == ["republished"]
    assert seen["legs"] == []
    assert browser.get("/api/traces/secret", auth=LIMITED).status_code == 404
    assert browser.get("/api/traces", auth=LIMITED).json()["traces"] == []
    assert browser.node.reader.queries[-1].vhosts == frozenset({"other"})


def test_a_user_without_the_tag_monitoring_reads_nothing() -> None:
    browser = Browser(FakeNode(story()))
    for path in ("/api/traces", "/api/traces/order-17", "/api/analysis", "/api/analysis/latency"):
        answer = browser.get(path, auth=PLAIN)
        assert (answer.status_code, answer.json()["error"]) == (403, "not_authorized")
        assert answer.json()["reason"].startswith("user 'plain' needs the tag 'monitoring' or 'administrator'")
    assert browser.node.reader.queries == []


def test_system_streams_are_listed_for_monitoring_users() -> None:
    browser = Browser()
    for name in ("warren.events", "mine"):
        arguments = {"x-queue-type": "stream"}
        browser.node.broker.vhosts["/"].declare_queue(name, True, False, False, arguments, connection=None)
    for auth, names in ((GUEST, ["mine", "warren.events"]), (PLAIN, ["mine"])):
        assert [each["name"] for each in browser.get("/api/streams", auth=auth).json()["streams"]] == names


def test_users_of_all_vhosts_see_deleted_ones_too() -> None:
    assert query_of("").vhosts is None


# -- the search --------------------------------------------------------------------------------------------------------


def test_found_messages_are_summed_up() -> None:
    assert asked("/api/traces?correlation_id=basket-9", story())["traces"] == [
        {
            "message_id": "order-17",
            "uid": uid_text(UID),
            "first_time": "2026-11-16T04:50:00.123456Z",
            "last_time": "2026-11-16T04:50:00.141956Z",
            "last_kind": "acked",
            "vhost": "/",
            "exchange": "orders",
            "routing_key": "order.created.eu",
            "queues": ["shipping", "billing", "audit"],
            "size": 1843,
            "events": 17,
            "correlation_id": "basket-9",
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
            "priority": None,
        }
    ]


def test_the_state_of_tracing_comes_along_so_that_an_empty_answer_explains_itself() -> None:
    assert asked("/api/traces")["tracing"] == {"enabled": False, "kept": 12345, "dropped": 0, "failure": None}


def test_a_long_answer_comes_in_pages() -> None:
    browser = Browser(FakeNode(*(story(f"m{n}", UID + n) for n in range(5))))
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = browser.get(f"/api/traces?limit=2&cursor={cursor}", auth=GUEST).json()
        seen += [trace["message_id"] for trace in page["traces"]]
        cursor = page["next"]
    assert seen == [f"m{n}" for n in range(5)]


def test_every_parameter_reaches_the_reader() -> None:
    asked_for = (
        "correlation_id=c&trace_id=0AF7651916CD43DD8448EB211C80319C&vhost=%2F&queue=q&exchange=e&routing_key=r"
        "&kind=dead_lettered&from=2026-11-16T04:50:00.123456Z&to=2026-11-16T05:50:00.5%2B01:00&limit=7&cursor=9"
    )
    assert query_of(asked_for) == TraceQuery(
        correlation_id="c",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        vhost="/",
        queue="q",
        exchange="e",
        routing_key="r",
        kind=schema.DEAD_LETTERED,
        start=BEGIN,
        end=BEGIN + 376_544,
        limit=7,
        cursor="9",
    )


def test_default_exchange_is_queried_as_amq_default() -> None:
    assert query_of("exchange=amq.default").exchange == ""


def test_empty_parameters_are_as_good_as_none() -> None:
    assert query_of("queue=&kind=&from=&limit=&trace_id=&cursor=") == TraceQuery()


def test_a_whole_traceparent_is_taken_too() -> None:
    given = "trace_id=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert query_of(given).trace_id == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(("text", "ago"), [("30s", 30), ("15m", 900), ("2h", 7200), ("7d", 604800), ("1w", 604800)])
def test_a_time_may_be_so_long_ago(text: str, ago: int) -> None:
    query = query_of(f"from={text}&to=0s")
    assert query.start is not None
    assert query.end is not None
    assert query.end - query.start == ago * 1_000_000


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("que=x", "unknown parameter 'que'; did you mean 'queue'?"),
        ("zzz=x", "unknown parameter 'zzz'; known: correlation_id"),
        ("queue=a&queue=b", "the parameter 'queue' is given twice"),
        ("limit=0", "'limit' must be a whole number from 1 to 500"),
        ("limit=x", "'limit' must be a whole number from 1 to 500"),
        ("limit=501", "'limit' must be a whole number from 1 to 500"),
        ("limit=99999999999999999999", "'limit' must be a whole number from 1 to 500"),
        ("from=yesterday", "'from' must be a time such as"),
        ("from=99999999999d", "'from' must be a time such as"),
        ("to=2026-13-01", "'to' must be a time such as"),
        ("from=2026-11-16&to=2026-11-15", "'from' is later than 'to'"),
        ("trace_id=xyz", "'trace_id' must be 32 hexadecimal digits, or a traceparent"),
        ("kind=eaten", "unknown kind of event 'eaten'; known: published"),
        ("cursor=x", "'x' is no cursor of this search"),
    ],
)
def test_invalid_parameters_are_refused_with_the_expected_form(parameters: str, reason: str) -> None:
    status, text = refused("/api/traces?" + parameters)
    assert status == 400
    assert text.startswith(reason)


# -- long answers, and many of them ------------------------------------------------------------------------------------


def long_story() -> Biography:
    """Some short legs around one that has many spans."""
    told = Telling("long", UID)
    told.at(0, schema.PUBLISHED)
    for number in range(30):
        told.at(number, schema.ENQUEUED, queue=f"before-{number}", depth=1)
    for number in range(400):
        told.at(number, schema.ENQUEUED if number == 0 else schema.REQUEUED, queue="long", depth=1)
        told.at(number, schema.DELIVERED, queue="long", consumer="c", attempt=number + 1, depth=0)
    for number in range(130):
        told.at(number, schema.ENQUEUED, queue=f"behind-{number}", depth=1)
    return told.biography()


def test_a_long_answer_is_the_same_json_though_it_is_made_in_parts() -> None:
    biography = long_story()
    response = Browser(FakeNode(biography)).get("/api/traces/long", auth=GUEST)
    assert response.headers["Content-Type"] == "application/json"
    assert int(response.headers["Content-Length"]) == len(response.content)
    told = response.json()
    assert told["events"] == [event_values(event) for event in biography.events]
    assert told["legs"] == [
        leg_values(leg) | {"spans": [span_values(span) for span in leg.spans]} for leg in biography.legs
    ]
    assert max(len(leg["spans"]) for leg in told["legs"]) == 800


def test_truncated_response_says_how_to_narrow_the_search() -> None:
    browser = Browser(FakeNode(replace(story(), is_truncated=True), story("whole", UID + 1)))
    told = browser.get("/api/traces/order-17", auth=GUEST).json()
    assert told["truncated"] is True
    assert "request a single message by its uid" in told["hint"]
    told = browser.get("/api/traces/whole", auth=GUEST).json()
    assert (told["truncated"], told.get("hint")) == (False, None)


@pytest.mark.parametrize("path", ["/api/traces", "/api/traces/x"])
def test_request_above_the_limit_gets_retry_after(path: str) -> None:
    class Busy(FakeReader):
        def _fail(self) -> None:
            raise TracingBusy("2 searches are running and 64 wait; try again later", 4)

    node = FakeNode()
    node.reader = Busy()
    answer = Browser(node).get(path, auth=GUEST)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "4")
    assert answer.json() == {
        "error": "service_unavailable",
        "reason": "2 searches are running and 64 wait; try again later",
    }


@pytest.mark.parametrize("path", ["/api/traces", "/api/traces/x"])
def test_disconnect_cancels_the_request(path: str) -> None:
    class Endless(FakeReader):
        def __init__(self) -> None:
            super().__init__()
            self.asked = asyncio.Event()
            self.ended = asyncio.Event()

        async def biography(self, key: str) -> Biography | None:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
            return None

        async def search(self, query: TraceQuery) -> TracePage:
            await self.biography("")
            return TracePage([])

    async def scenario() -> None:
        node = FakeNode()
        node.reader = reader = Endless()
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await reader.asked.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            """No one is there."""

        authorization = b"Basic " + base64.b64encode(b"guest:guest")
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"authorization", authorization)], "client": ("127.0.0.1", 5), "server": ("broker", 80),
            "scheme": "http", "root_path": "", "http_version": "1.1",
        }  # fmt: skip
        await asyncio.wait_for(create_app(node.view())(scope, receive, send), 30)
        assert reader.ended.is_set()

    asyncio.run(scenario())
