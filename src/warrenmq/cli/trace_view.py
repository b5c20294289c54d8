"""Draws biographies in a terminal: where the message is, a timeline row per queue, then all events. Fits 80 columns.

Text from messages is made printable first (printable.py).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warrenmq.cli.printable import printable, shortened

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_WIDTH = 120
# For durations below a number of seconds: the unit, and a smaller one for the rest.
LONG_UNITS: tuple[tuple[float, int, str, int, str], ...] = (
    (3_600, 60, "min", 1, "s"),
    (86_400, 3_600, "h", 60, "min"),
    (math.inf, 86_400, "d", 3_600, "h"),
)
MAX_ROW_NAME = 20
PUBLISHER = "publisher"
LOST = "lost"
# What stands for the schedule of a virtual host in events.
SCHEDULE = "warren.scheduled"
MIN_SINCE, WHY = 11, 10  # widths of columns
# Reasons of an event that removed all messages on disk; with others it removed some.
ALL_GONE = ("purged", "queue_deleted")

STYLES = {
    "ok": "green",
    "bad": "red",
    "warn": "yellow",
    "info": "blue",
    "quiet": "bright_black",
    "waiting": "yellow",
    "processing": "cyan",
    "delayed": "magenta",
    "note": "cyan",
    LOST: "red",
}
GROUPS = {
    "ok": ("acked", "confirmed", "tx_committed"),
    "bad": (
        LOST,
        "nacked",
        "rejected",
        "unroutable",
        "returned",
        "expired",
        "dropped",
        "dead_lettered",
        "tx_rolled_back",
    ),
    "warn": ("requeued", "retried", "scheduled", "republished"),
    "info": ("published", "routed", "enqueued", "delivered", "waiting", "processing", "delayed"),
    "note": ("noted",),
}


@dataclass(frozen=True)
class Signs:
    """The characters of the drawing."""

    waiting: str = "░"
    processing: str = "█"
    delayed: str = "·"
    event: str = "●"
    ok: str = "✓"
    bad: str = "✗"
    warn: str = "↺"
    note: str = "✎"
    lost: str = "╌"

    def of_span(self, kind: str) -> str:
        return {"waiting": self.waiting, "processing": self.processing, "delayed": self.delayed, LOST: self.lost}[kind]

    def of(self, kind: str) -> str:
        signs = {"ok": self.ok, "bad": self.bad, "warn": self.warn, "note": self.note}
        return signs.get(group(kind), self.event)


ASCII_SIGNS = Signs(".", "=", "-", "o", "+", "x", "~", "!", "?")


@dataclass
class TimelineRow:
    """What happened in one queue, or on the publisher's side; times are microseconds since the first event."""

    name: str
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)


def show_biography(biography: dict[str, Any], console: Console) -> None:
    signs = Signs() if console.encoding.lower().startswith("utf") else ASCII_SIGNS
    width = min(console.width, MAX_WIDTH)
    console.print(_heading(biography, width))
    for line in present(biography):
        console.print(Text(printable(line), style="bold"))
    console.print(_timeline(timeline_rows(biography), signs, width))
    for part in _events_tables(biography["events"], signs, width):
        console.print(part)
    if any(span["outcome"] == LOST for leg in biography["legs"] for span in leg["spans"]):
        console.print(Text("The broker ended while a consumer had it: for how long is not known.", style="yellow"))
    if any(each.get("messages") and each["reason"] not in ALL_GONE for each in biography["events"]):
        console.print(Text("Messages were removed on disk: whether this is one of them is not known.", style="yellow"))
    if biography.get("truncated"):
        console.print(Text(f"Truncated: {biography['hint']}.", style="yellow"))
    elif not biography["complete"]:
        console.print(Text("Its beginning is not kept, or it has not come to its end yet.", style="yellow"))


def show_found(found: dict[str, Any], console: Console) -> None:
    """Print a table of messages."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, width=min(console.width, MAX_WIDTH))
    table.add_column("first event", no_wrap=True)
    table.add_column("message", ratio=3, overflow="fold")
    table.add_column("queues", ratio=2, no_wrap=True, overflow="ellipsis")
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("last event", no_wrap=True)
    for each in found["traces"]:
        took = duration(microseconds(each["last_time"]) - microseconds(each["first_time"]))
        names = Text(printable(each["message_id"]), style="bold"), Text(printable(", ".join(each["queues"])) or "-")
        table.add_row(local(each["first_time"])[:-3], *names, took, kind_text(each["last_kind"]))
    console.print(table)
    if found["next"]:
        console.print(Text("There are more: narrow the time with --from and --to, or raise --limit.", style="dim"))


# -- the parts ---------------------------------------------------------------------------------------------------------


def _heading(biography: dict[str, Any], width: int) -> Text:
    first, legs = biography["events"][0], biography["legs"]
    text = Text("Message ", style="bold").append(printable(biography["message_id"]), style="bold cyan")
    facts = [f"first event {local(first['time'])} ({zone(first['time'])})", _route(first) + _priority(biography)]
    details = [f"{name.replace('_', ' ')} {first[name]}" for name in ("correlation_id", "trace_id") if first.get(name)]
    if biography["uid"] not in (None, biography["message_id"]):
        details.insert(0, f"broker's id {biography['uid']}")
    took = duration(microseconds(biography["events"][-1]["time"]) - microseconds(first["time"]))
    waiting, processing = (_sum(legs, name) for name in ("waiting_us", "processing_us"))
    sums = f"{len(biography['events'])} events in {took}: waiting {waiting}, processing {processing}"
    if any(leg["delayed_us"] is not None for leg in legs):
        sums += f", delayed {_sum(legs, 'delayed_us')}"
    for line in (*facts, *_joined(details, width), sums):
        text.append("\n" + printable(line), style="default not bold")
    return text


def present(biography: dict[str, Any]) -> list[str]:
    """Return where the message is now, and for how long: a line for each queue that still has it."""
    now = microseconds(biography["now"])
    lines = []
    for leg in biography["legs"]:
        for span in leg["spans"]:
            if span["end"] is None:
                lines.append(f"now {_place(leg, span, now)}, for {duration(max(0, now - microseconds(span['begin'])))}")
    return lines


def _place(leg: dict[str, Any], span: dict[str, Any], now: int) -> str:
    if span["kind"] == "processing":
        who = span["consumer"]
        return f"with consumer {who} of {leg['queue']}" if who else f"fetched from {leg['queue']}"
    if span["kind"] != "delayed":
        return f"waiting in {leg['queue']}"
    due = microseconds(span["due"])
    when = f"due in {_rough(due - now)}" if due > now else "due now"
    if leg["queue"] == SCHEDULE:
        return f"scheduled for {moment(span['due'], now)}, {when}"
    return f"waiting in {leg['queue']} for retry {span['attempt']} of {span['retry_max']}, {when}"


def _route(event: dict[str, Any]) -> str:
    size = f", {event['size']:,} bytes" if "size" in event else ""
    return f"exchange {event.get('exchange') or '(default)'}, key {event.get('routing_key', '-') or '(empty)'}{size}"


def _priority(biography: dict[str, Any]) -> str:
    """The priority of the message itself; others in its biography may have another."""
    own = [event for event in biography["events"] if event.get("uid") == biography["uid"]]
    return next((f", priority {event['priority']}" for event in own if "priority" in event), "")


def _joined(parts: Iterable[str], width: int) -> list[str]:
    """Join as many parts per line as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += ", " + part
        else:
            lines.append(part)
    return lines


def timeline_rows(biography: dict[str, Any]) -> list[TimelineRow]:
    """Return the publisher's row, then one per queue, in the order in which the message reached them."""
    begin = microseconds(biography["events"][0]["time"])
    spans = [span for leg in biography["legs"] for span in leg["spans"]]
    known = [each["time"] for each in biography["events"]] + [span["end"] for span in spans if span["end"] is not None]
    last = max(map(microseconds, known))
    rows: dict[str, TimelineRow] = {}
    for event in biography["events"]:
        name = event.get("queue", PUBLISHER)
        # To a consumer that does not ack, a delivery is the end.
        kind = "acked" if event.get("reason") == "auto_ack" else event["kind"]
        rows.setdefault(name, TimelineRow(name)).events.append((kind, microseconds(event["time"]) - begin))
    for leg in biography["legs"]:
        row = rows.setdefault(leg["queue"], TimelineRow(leg["queue"]))
        for span in leg["spans"]:
            end = last if span["end"] is None else microseconds(span["end"])  # an open one ends at the edge
            is_lost = span["outcome"] == LOST
            row.spans.append((LOST if is_lost else span["kind"], microseconds(span["begin"]) - begin, end - begin))
            if is_lost:
                row.events.append((LOST, end - begin))
    return list(rows.values())


def _timeline(rows: list[TimelineRow], signs: Signs, width: int) -> Text:
    name_width = min(MAX_ROW_NAME, max(cell_len(printable(row.name)) for row in rows))
    columns = width - name_width - 3
    length = max([at for row in rows for _, at in row.events] + [end for row in rows for _, _, end in row.spans])
    text = Text("\n")
    for row in rows:
        name = shortened(row.name, name_width)
        text.append(" " + name + " " * (name_width - cell_len(name) + 1), style="bold")
        text.append(_drawn(row, signs, columns, length)).append("\n")
    total = duration(length)
    text.append(" " * (name_width + 2) + "0" + total.rjust(columns - 1), style="dim")
    text.append("\n ")
    drawn = {"waiting", "processing"} | {kind for row in rows for kind, _, _ in row.spans}
    for kind in [kind for kind in ("waiting", "processing", "delayed", LOST) if kind in drawn]:
        text.append(signs.of_span(kind) * 2, style=STYLES[kind]).append(f" {kind}   ", style="dim")
    text.append(signs.ok, style=STYLES["ok"]).append(" done   ", style="dim")
    text.append(signs.warn, style=STYLES["warn"]).append(" again   ", style="dim")
    text.append(signs.bad, style=STYLES["bad"]).append(" refused or lost", style="dim")
    return text


def _drawn(row: TimelineRow, signs: Signs, columns: int, length: int) -> Text:
    """Draw one row: spans, then events over them, the last one on top."""
    cells: list[tuple[str, str]] = [(" ", "")] * columns

    def column(at: int) -> int:
        return min(columns - 1, at * (columns - 1) // length) if length else 0

    for kind, begin, end in row.spans:
        sign = signs.of_span(kind)
        for place in range(column(begin), column(end) + 1):
            cells[place] = (sign, STYLES[kind])
    for kind, at in row.events:
        if group(kind) != "info" or not row.spans:
            cells[column(at)] = (signs.of(kind), f"bold {STYLES[group(kind)]}")
    return Text.assemble(*cells)


def _events_tables(events: list[dict[str, Any]], signs: Signs, width: int) -> Iterator[Table | Text]:
    """Yield the events as tables with the same columns, and what an event tells as text between them."""
    begin = microseconds(events[0]["time"])
    kind_width = max(cell_len(kind_text(event["kind"], signs).plain) for event in events)
    yield Text()
    table = _events_table(kind_width, width, True)
    for event in events:
        table.add_row(
            duration(microseconds(event["time"]) - begin),
            kind_text(event["kind"], signs),
            Text(printable(event.get("queue", ""))),
            Text(printable(event.get("consumer", ""))),
            str(event.get("attempt", "")),
            Text(printable(_why(event))),
        )
        details = _details(event)
        if details:
            yield table
            indent = " " * (MIN_SINCE + 5)  # below the name of the kind
            lines = textwrap.wrap(printable(details), width, initial_indent=indent, subsequent_indent=indent)
            yield Text("\n".join(lines), style=STYLES[group(event["kind"])])
            table = _events_table(kind_width, width, False)
    if table.row_count:
        yield table
    yield Text()


def _events_table(kind_width: int, width: int, has_head: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, width=width, show_header=has_head, show_edge=False)
    table.add_column("since first", justify="right", no_wrap=True, width=MIN_SINCE)
    table.add_column("event", no_wrap=True, width=kind_width)
    table.add_column("queue", ratio=4, overflow="fold")
    table.add_column("consumer", ratio=3, overflow="fold")
    table.add_column("try", justify="right", no_wrap=True, width=3)
    table.add_column("why", width=WHY, overflow="fold")
    return table


def _details(event: dict[str, Any]) -> str:
    """Return the text of a note, or until when a message waits; empty for other events."""
    if "due_time" not in event:
        return str(event.get("note", ""))
    time, due = microseconds(event["time"]), microseconds(event["due_time"])
    if event["kind"] == "scheduled":
        return f"scheduled for {moment(event['due_time'], time)}, in {_rough(due - time)}"
    reason = event["reason"].replace("_", " ")
    return f"retry {event['attempt']} of {event['retry_max']} in {_rough(due - time)}, because {reason}"


def _why(event: dict[str, Any]) -> str:
    """Return the reason, the number of messages if it concerned others too, and where a dead letter went."""
    count = event.get("messages")
    many = f"{count:,} message{'' if count == 1 else 's'}" if count else ""
    is_dead_letter = event["kind"] in ("routed", "unroutable") and "queue" in event
    way = f"to {event.get('exchange') or '(default)'}" if is_dead_letter else ""
    return ", ".join(filter(None, (event.get("reason", "").replace("_", " "), many, way)))


# -- words and numbers -------------------------------------------------------------------------------------------------


def kind_text(kind: str, signs: Signs | None = None) -> Text:
    style = STYLES[group(kind)]
    sign = f"{signs.of(kind)} " if signs is not None else ""
    return Text(sign + printable(kind).replace("_", "-"), style=style)


def group(kind: str) -> str:
    return next((name for name, kinds in GROUPS.items() if kind in kinds), "quiet")


def microseconds(iso: str) -> int:
    return (datetime.fromisoformat(iso) - EPOCH) // timedelta(microseconds=1)


def local(iso: str) -> str:
    """Format in the local time zone, with microseconds."""
    return datetime.fromisoformat(iso).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")


def moment(iso: str, now: int) -> str:
    """Format in the local time zone, to the second; with the day unless it is that of `now`."""
    time, today = datetime.fromisoformat(iso).astimezone(), (EPOCH + timedelta(microseconds=now)).astimezone()
    return time.strftime("%H:%M:%S" if time.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def zone(iso: str) -> str:
    name = datetime.fromisoformat(iso).astimezone().strftime("%z")
    return "UTC" if name == "+0000" else f"UTC{name[:3]}:{name[3:]}"


def duration(us: int | None) -> str:
    """850 us, 12.4 ms, 3.21 s, 2 min 5 s, 3 h 4 min, 2 d 3 h."""
    if us is None:
        return "-"
    for below, unit, name in ((1_000, 1, "us"), (1_000_000, 1_000, "ms"), (60_000_000, 1_000_000, "s")):
        if us < below:
            return f"{us / unit:.2f}".rstrip("0").rstrip(".") + f" {name}"
    seconds = round(us / 1_000_000)
    unit, name, part, part_name = next(units[1:] for units in LONG_UNITS if seconds < units[0])
    count, rest = divmod(seconds, unit)
    return f"{count} {name} {rest // part} {part_name}" if rest >= part else f"{count} {name}"


def _rough(us: int) -> str:
    """Format a time to come, to hundredths of a second: the broker counts it from the beginning of the turn."""
    return duration(round(us, -4))


def _sum(legs: list[dict[str, Any]], name: str) -> str:
    known = [leg[name] for leg in legs if leg[name] is not None]
    return duration(sum(known)) if known else "-"
