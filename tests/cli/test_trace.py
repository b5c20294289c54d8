"""`warren trace` as a process: what it draws, what it says when there is nothing, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.management.fakes import (
    UID,
    FakeNode,
    begun,
    dead_story,
    killed_story,
    purged_story,
    retried_story,
    scheduled_story,
    story,
)
from tests.management.serving import served
from warrenmq.cli.trace_view import duration
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.tracing.biography import Biography, build_biography
from warrenmq.tracing.rules import TraceRule

WIDE = "受注"


def trace(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "warrenmq", "trace", *arguments]
    environ = {"PYTHONIOENCODING": "utf-8", "TZ": "UTC"} | (environ or {})
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", env=environ, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def told(*arguments: str, stories: tuple[Biography, ...] = (), environ: dict[str, str] | None = None) -> str:
    with served(FakeNode(*(stories or (story(),)), rules=[TraceRule("all")])) as url:
        code, out, log = trace(*arguments, "--url", url, environ=environ)
    assert (code, log) == (0, "")
    return out


def test_a_story_is_drawn_with_a_lane_for_each_queue_and_every_event() -> None:
    out = told("order-17")
    assert out.startswith("Message order-17\nfirst event 2026-11-16 04:50:00.123456 (UTC)\n")
    assert "17 events in 18.5 ms: waiting 9.72 ms, processing 20.6 ms" in out
    assert re.search(r"^ shipping +░+█+↺░+█+✓ *$", out, re.MULTILINE), out
    assert re.search(r"^ billing +░+█+✓ +░+█+✓ *$", out, re.MULTILINE), out
    assert re.search(r"^ audit +░+✓ *$", out, re.MULTILINE), out
    assert re.search(r"^ +7\.4 ms +↺ requeued +shipping +packer-1 +1 +connection *$", out, re.MULTILINE), out
    assert len(re.findall(r"● delivered", out)) == 5


def test_the_priority_of_the_message_stands_at_its_head() -> None:
    plain = story()
    assert "priority" not in told("order-17")
    # Events of an earlier version of the broker have none; the message that was made from it has its own.
    events = [
        replace(event, priority=9 if event.uid != UID else 7 if number > 2 else None)
        for number, event in enumerate(plain.events)
    ]
    out = told("order-17", stories=(replace(plain, events=events),))
    assert "\nexchange orders, key order.created.eu, 1,843 bytes, priority 7\n" in out


def test_it_fits_80_columns_whatever_the_names_are() -> None:
    wild = story(WIDE * 60, queue="q" * 255)
    events = [replace(event, consumer=WIDE * 30, priority=255) for event in wild.events]
    for out in (
        told(WIDE * 60, stories=(replace(wild, events=events),)),
        told("--limit", "5", stories=(wild, story())),
    ):
        assert [line for line in out.splitlines() if cell_len(line) > 80] == []


def test_names_cannot_steer_the_terminal() -> None:
    out = told("\x1b[2J", stories=(story("\x1b[2J", queue="\x1b]0\x07[red]x[/red]"),))
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\\x1b[2J" in out
    assert "[red]" in out


def test_a_terminal_without_unicode_gets_a_plain_drawing() -> None:
    out = told("order-17", environ={"PYTHONIOENCODING": "ascii"})
    assert out.isascii()
    assert re.search(r"^ shipping +\.+=+~\.+=+\+ *$", out, re.MULTILINE), out


def test_a_message_that_still_waits_is_drawn_to_the_edge() -> None:
    out = told("order-17", stories=(begun(story().events[:3]),))
    assert "has not come to its end yet" in out
    assert re.search(r"^ shipping +░+$", out, re.MULTILINE), out


def test_a_message_with_one_event_is_drawn() -> None:
    lost = replace(story().events[0], kind=schema.UNROUTABLE, reason=schema.R_NO_ROUTE)
    assert re.search(r"✗ unroutable +no route", told("order-17", stories=(begun([lost]),)))


def test_a_consumer_that_the_broker_was_killed_under_is_marked_as_lost() -> None:
    out = told("order-18", stories=(killed_story(),))
    assert re.search(r"^ shipping +░+╌+✗█+✓ *$", out, re.MULTILINE), out
    assert re.search(r"● delivered +shipping +packer-2 +2 *$", out, re.MULTILINE), out
    assert "The broker ended while a consumer had it: for how long is not known." in out
    assert "╌╌ lost" in out
    plain = told("order-18", stories=(killed_story(),), environ={"PYTHONIOENCODING": "ascii"})
    assert re.search(r"^ shipping +\.+\?+x=+\+ *$", plain, re.MULTILINE), plain
    usual = told("order-17")
    assert "The broker ended" not in usual
    assert "╌" not in usual


def test_what_still_waits_is_drawn_as_far_as_the_loss_of_another() -> None:
    events = killed_story().events[:3]
    lost = build_biography([*events[:2], replace(events[1], queue="billing"), events[2]], began=events[0].time + 50_000)
    assert lost is not None
    out = told("order-18", stories=(lost,))
    assert re.search(r"^ billing +░{60,}$", out, re.MULTILINE), out
    assert re.search(r"^ shipping +░+╌+✗$", out, re.MULTILINE), out


def test_a_purge_shows_the_number_of_dropped_messages() -> None:
    out = told("order-19", stories=(purged_story(),))
    assert re.search(r"✗ dropped +shipping +purged, *\n +12,000 *\n +messages *$", out, re.MULTILINE), out
    assert re.search(r"^ shipping +░+✗ *$", out, re.MULTILINE), out


def test_a_dead_letter_shows_its_exchange_and_that_it_may_have_been_removed() -> None:
    out = told("order-20", stories=(dead_story(),))
    assert re.search(r"✗ dead-lettered +shipping +packer-1 +1 +rejected *$", out, re.MULTILINE), out
    assert re.search(r"● routed +shipping +to dlx *$", out, re.MULTILINE), out
    assert re.search(r"✗ expired +dead +expired, *\n +4,000 *\n +messages *$", out, re.MULTILINE), out
    assert "Messages were removed on disk: whether this is one of them is not known." in out
    assert "removed on disk" not in told("order-19", stories=(purged_story(),))


def test_a_message_that_is_retried_shows_its_notes_and_when_it_returns() -> None:
    out = told("order-21", stories=(retried_story(),))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[lines.index("1.7 s ✎ noted shipping packer-1 1") + 1] == "no such account \\x1b[2J"
    assert lines[lines.index("1.7 s ↺ retried shipping 1 rejected") + 1] == "retry 1 of 16 in 4 s, because rejected"
    assert "scheduled for 04:50:01, in 1.5 s" in lines
    assert re.search(r"^now waiting in shipping for retry 1 of 16, due now, for \d+ d", out, re.MULTILINE), out
    assert re.search(r"waiting 99\.9 ms, processing 100\.02 ms, delayed 1\.5 s$", out, re.MULTILINE), out
    assert re.search(r"^ warren.scheduled ↺·+ *$", out, re.MULTILINE), out
    assert re.search(r"^ shipping +░+█+✗↺ *$", out, re.MULTILINE), out
    assert [line for line in out.splitlines() if cell_len(line) > 80] == []


def test_a_scheduled_message_shows_where_it_is() -> None:
    out = told("order-22", stories=(scheduled_story(),))
    assert re.search(r"^now scheduled for 2026-11-17 04:50:00, due ", out, re.MULTILINE), out
    assert "scheduled for 2026-11-17 04:50:00, in 1 d" in out


def test_a_message_that_waits_or_is_processed_shows_where_and_for_how_long() -> None:
    queued = told("order-17", stories=(begun(story().events[:3]),))
    assert re.search(r"^now waiting in shipping, for \d+ d", queued, re.MULTILINE), queued
    taken = told("order-18", stories=(begun(killed_story().events[:3]),))
    assert re.search(r"^now with consumer packer-1 of shipping, for \d+ d", taken, re.MULTILINE), taken
    assert "\nnow " not in told("order-17")


def test_json_is_what_the_broker_answers() -> None:
    answer = json.loads(told("order-17", "--json"))
    assert (answer["message_id"], len(answer["events"]), len(answer["legs"])) == ("order-17", 17, 4)


def test_several_messages_are_listed() -> None:
    out = told("--correlation-id", "basket-9", stories=(story(), story(None, UID + 1)))
    assert re.search(r"^ 2026-11-16 04:50:00\.123 +order-17 +shipping", out, re.MULTILINE), out
    assert uid_text(UID + 1) in out


def test_a_search_that_the_broker_answers_in_parts_is_followed_to_its_limit() -> None:
    node = FakeNode(*(story(f"m{n}", UID + n) for n in range(9)), rules=[TraceRule("all")])
    node.reader.page_size = 2
    with served(node) as url:
        _, out, _ = trace("--limit", "7", "--json", "--url", url)
    answer = json.loads(out)
    assert [each["message_id"] for each in answer["traces"]] == [f"m{n}" for n in range(7)]
    assert answer["next"] == "7"


def test_a_single_found_message_is_shown() -> None:
    assert told("--trace-id", "0af7651916cd43dd8448eb211c80319c").startswith("Message order-17\n")


def test_every_option_reaches_the_broker_and_times_without_zone_are_those_of_this_machine() -> None:
    node = FakeNode(rules=[TraceRule("all")])
    options = "--queue q --exchange e --routing-key k --vhost v --kind acked --limit 9 --from 2026-11-16T05:00 --to 1s"
    with served(node) as url:
        code, _, _ = trace(*options.split(), "--url", url, environ={"TZ": "UTC-1"})
    assert code == 1
    query = node.reader.queries[0]
    assert (query.queue, query.exchange, query.routing_key, query.vhost) == ("q", "e", "k", "v")
    assert (query.kind, query.limit) == (schema.ACKED, 9)
    assert query.start == 1_794_801_600_000_000  # 04:00 UTC


@pytest.mark.parametrize("arguments", [("nothing",), ("--queue", "nothing")])
def test_without_events_it_explains_how_to_enable_tracing(arguments: tuple[str, ...]) -> None:
    with served(FakeNode()) as url:
        code, out, log = trace(*arguments, "--url", url)
    assert (code, out) == (1, "")
    assert "Tracing is off" in log
    assert "warren serve --trace all" in log
    assert f"curl -u guest -X PUT {url}/api/trace-rules/everything" in log


def test_with_events_of_other_messages_it_only_reports_this_one_missing() -> None:
    with served(FakeNode(rules=[TraceRule("all")])) as url:
        assert trace("nothing", "--url", url) == (1, "", "warren: no events of a message 'nothing'\n")


def test_a_failed_event_log_is_reported() -> None:
    node = FakeNode()
    node.log_failure = "no space left"
    with served(node) as url:
        _, _, log = trace("nothing", "--url", url)
    assert "the event log has failed: no space left" in log


def test_what_keeps_it_from_asking_is_one_line_and_exit_2() -> None:
    with served(FakeNode(failure="disk gone")) as url:
        attempts = [
            (["x", "--url", url, "--user", "guest:wrong"], "unknown user or wrong password"),
            (["x", "--url", url, "--user", "guest"], "no password for user 'guest'"),
            (["x", "--url", url], "the event log cannot be read: disk gone"),
            (["--kind", "eaten", "--url", url], "unknown kind of event 'eaten'"),
            (["x", "--queue", "q", "--url", url], "give a message id or filters, not both"),
            (["x", "--url", "http://127.0.0.1:1"], "cannot reach a broker at http://127.0.0.1:1"),
            (["x", "--url", "ftp://127.0.0.1"], "is not an HTTP URL"),
            (["x", "--url", "http://127.0.0.1:99999"], "is not a valid URL"),
        ]
        for arguments, reason in attempts:
            code, out, log = trace(*arguments)
            assert (code, out, log.count("\n")) == (2, "", 1), log
            assert log.startswith("warren: ")
            assert reason in log


def test_the_url_may_hold_the_user() -> None:
    with served(FakeNode(story())) as url:
        code, out, _ = trace("order-17", "--url", url.replace("//", "//guest:guest@") + "/", "--user", "no:body")
    assert (code, out[:16]) == (0, "Message order-17")


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "-"),
        (0, "0 us"),
        (999, "999 us"),
        (12_345, "12.35 ms"),
        (1_000_000, "1 s"),
        (61_000_000, "1 min 1 s"),
        (3_600_000_000, "1 h"),
        (90_000_000_000, "1 d 1 h"),
    ],
)
def test_durations_are_short_to_read(microseconds: int | None, text: str) -> None:
    assert duration(microseconds) == text
