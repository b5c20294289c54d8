"""Draws an analysis in a terminal: how far it is, and what it found. Good in 80 columns.

The tables sum up the rows of all windows; everything that comes from messages is made printable first.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warrenmq.cli.printable import printable, shortened

if TYPE_CHECKING:
    from warrenmq.pipeline.analysis.progress import Progress, Tell

Row = Mapping[str, Any]
MOST_ROWS = 8
MOST_PRIORITIES = 16  # rows: some queues with some priorities each
MOST_SENTENCES = 10
LONGEST_NAME = 26
PLAIN_LINE_EVERY = 10.0
DURATIONS = (
    (1_000, 1, "us"),
    (1_000_000, 1_000, "ms"),
    (120_000_000, 1_000_000, "s"),
    (float("inf"), 60_000_000, "min"),
)


# -- how far it is -----------------------------------------------------------------------------------------------------


@contextmanager
def progress_view() -> Iterator[Tell]:
    """Gives what shows progress, from any thread: a bar where a terminal is, else a line now and then."""
    if not sys.stderr.isatty():
        yield _PlainLines().tell
        return
    from rich import progress as bars

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(20),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)

        def tell(progress: Progress) -> None:
            done, total = _share(progress)
            bar.update(task, description=progress_text(progress), completed=done, total=total)

        yield tell


class _PlainLines:
    """A line for each new thing, and one now and then while it goes on."""

    def __init__(self) -> None:
        self._what = ""
        self._at = 0.0

    def tell(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.what == self._what and now - self._at < PLAIN_LINE_EVERY:
            return
        self._what, self._at = progress.what, now
        print(f"warren: {progress_text(progress)}", file=sys.stderr, flush=True)


def progress_text(progress: Progress) -> str:
    """One line, with as much as is known."""
    parts = [printable(progress.what)]
    if progress.total is not None:
        parts.append(f"{progress.done} of {progress.total}")
    if progress.batches:
        parts.append(f"batches {progress.batches:,}")
        parts.append(f"events {progress.events:,}")
        parts.append("lag ?" if progress.lag is None else f"lag {progress.lag:,}")
    if progress.late:
        parts.append(f"late {progress.late:,}")
    return " · ".join(parts)


def _share(progress: Progress) -> tuple[int, int | None]:
    if progress.total is not None:
        return progress.done, progress.total
    if progress.lag is None:
        return 0, None
    return progress.events, max(1, progress.events + progress.lag)


# -- what it found -----------------------------------------------------------------------------------------------------


def show_findings(documents: Sequence[Row], about: Mapping[str, str], console: Console) -> None:
    """The most important answers, as tables; jobs that did not run or found nothing are left out."""
    rows: dict[str, Sequence[Row]] = {document["job"]: document["rows"] for document in documents}
    console.print(Text(f"{about['Events']} events, {about['Range']}"))
    shown = [
        table
        for make in (
            _queues,
            _priorities,
            _exchanges,
            _failures,
            _hot_keys,
            _stuck,
            _unroutable,
            _duplicates,
            _sessions,
        )
        if (table := make(rows)) is not None
    ]
    for table in shown:
        console.print()
        console.print(table)
    _print_anomalies(rows, console)


def show_anomalies(document: Row, console: Console) -> None:
    """What is unusual in the newest window, as it is found by a --follow."""
    if document["job"] != "anomalies" or not document["rows"]:
        return
    newest = max(row["window_start"] for row in document["rows"])
    for row in document["rows"]:
        if row["window_start"] == newest:
            console.print(Text(f"{_clock(newest)} {printable(row['sentence'])}"))


def _print_anomalies(rows: Mapping[str, Sequence[Row]], console: Console) -> None:
    if "anomalies" not in rows:
        return
    worst = sorted(rows["anomalies"], key=lambda row: -abs(row["score"] or 0))
    console.print()
    if not worst:
        console.print(Text("No anomalies."))
        return
    console.print(Text(f"Anomalies: {len(worst):,}" + (", the worst first" if len(worst) > 1 else ""), style="bold"))
    lines = Table.grid(padding=(0, 1))
    for row in worst[:MOST_SENTENCES]:
        _add(lines, " " + _clock(row["window_start"]), printable(row["sentence"]))
    console.print(lines)


def _queues(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    """Throughput, times and backlog of each queue together."""
    moved = _sums(
        (row for row in rows.get("throughput", ()) if row["what"] == "queue"),
        ("vhost", "name"),
        ("enqueued", "delivered", "acked"),
    )
    waited = _maxima(rows.get("latency", ()), ("vhost", "queue"), ("waiting_p95_us", "end_to_end_p95_us"))
    depth = _last(rows.get("backlog", ()), ("vhost", "queue"))
    names = sorted({*moved, *waited, *depth}, key=lambda name: -moved.get(name, {}).get("enqueued", 0))
    if not names:
        return None
    table = _table("Queues", "queue", "in", "out", "acked", "worst p95 wait", "end to end", "depth")
    for name in names[:MOST_ROWS]:
        counts, times = moved.get(name, {}), waited.get(name, {})
        _add(
            table,
            _place(name),
            _count(counts.get("enqueued")),
            _count(counts.get("delivered")),
            _count(counts.get("acked")),
            duration(times.get("waiting_p95_us")),
            duration(times.get("end_to_end_p95_us")),
            _count(depth.get(name, {}).get("depth")),
        )
    return _with_rest(table, names)


def _priorities(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    """Of each queue with priorities the highest first."""
    keys, times = ("vhost", "queue", "priority"), ("waiting_p50_us", "waiting_p99_us", "waiting_max_us")
    counts = _sums(rows.get("priorities", ()), keys, ("delivered",))
    waited = _maxima(rows.get("priorities", ()), keys, times)
    names = sorted(counts, key=lambda name: (*name[:2], -name[2]))
    if not names:
        return None
    table = _table("Priorities", "queue", "priority", "out", "worst p50 wait", "p99", "longest")
    for name in names[:MOST_PRIORITIES]:
        waits = [duration(waited[name].get(measure)) for measure in times]
        _add(table, _place(name[:2]), str(name[2]), _count(counts[name]["delivered"]), *waits)
    return _with_rest(table, names, MOST_PRIORITIES)


def _exchanges(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    made = _sums(
        (row for row in rows.get("throughput", ()) if row["what"] == "exchange"),
        ("vhost", "name"),
        ("published", "octets"),
    )
    names = sorted((name for name in made if made[name]["published"]), key=lambda name: -made[name]["published"])
    if not names:
        return None
    table = _table("Exchanges", "exchange", "published", "octets")
    for name in names[:MOST_ROWS]:
        _add(table, _place(name), _count(made[name]["published"]), _count(made[name]["octets"]))
    return _with_rest(table, names)


def _failures(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("failures", ()), ("vhost", "queue", "kind", "reason"), ("count",))
    keys = {_key(row, ("vhost", "queue", "kind", "reason")): row for row in rows.get("failures", ()) if row["top_key"]}
    return _ranking("Failures", found, "count", ("queue", "what", "why", "count", "top key"), lambda name, sums: (
        _place(name[:2]), printable(name[2]), printable(name[3]), _count(sums["count"]),
        shortened(keys.get(name, {}).get("top_key", ""), LONGEST_NAME),
    ))  # fmt: skip


def _hot_keys(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("hot_keys", ()), ("vhost", "exchange", "routing_key"), ("published", "failed"))
    poison = {_key(row, ("vhost", "exchange", "routing_key")) for row in rows.get("hot_keys", ()) if row["poison"]}
    return _ranking("Hot keys", found, "published", ("exchange", "key", "published", "failed", ""), lambda name, sums: (
        _place(name[:2]), shortened(name[2], LONGEST_NAME), _count(sums["published"]), _count(sums["failed"]),
        Text("poison", style="red") if name in poison else "",
    ), first=lambda name: name in poison)  # fmt: skip


def _stuck(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    latest = _last(rows.get("consumers", ()), ("vhost", "queue", "consumer", "connection", "channel"))
    stuck = [row for row in latest.values() if row["stuck"]]
    if not stuck:
        return None
    table = _table("Stuck consumers", "queue", "consumer", "holds", "since")
    for row in stuck[:MOST_ROWS]:
        since = _clock(row["stuck_since"]) if row["stuck_since"] else ""
        consumer = Text(shortened(row["consumer"], LONGEST_NAME), style="red")
        _add(table, _place((row["vhost"], row["queue"])), consumer, _count(row["outstanding"]), since)
    return _with_rest(table, stuck)


def _unroutable(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("unroutable", ()), ("vhost", "exchange", "routing_key"), ("count", "returned"))
    return _ranking("Unroutable", found, "count", ("exchange", "key", "count", "returned"), lambda name, sums: (
        _place(name[:2]), shortened(name[2], LONGEST_NAME), _count(sums["count"]), _count(sums["returned"]),
    ))  # fmt: skip


def _duplicates(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("duplicates", ()), ("vhost", "what", "name"), ("times",))
    return _ranking("Duplicates", found, "times", ("what", "name", "times"), lambda name, sums: (
        printable(name[1]), shortened(name[2], LONGEST_NAME), _count(sums["times"]),
    ))  # fmt: skip


def _sessions(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = sorted(rows.get("sessions", ()), key=lambda row: (-(row["failed"] or 0), -(row["duration_us"] or 0)))
    if not found:
        return None
    table = _table("Sessions: failed, then longest", "correlation id", "messages", "failed", "lasted")
    for row in found[:MOST_ROWS]:
        name = shortened(row["correlation_id"], LONGEST_NAME)
        _add(table, name, _count(row["messages"]), _count(row["failed"]), duration(row["duration_us"]))
    return _with_rest(table, found)


# -- parts -------------------------------------------------------------------------------------------------------------

Name = tuple[Any, ...]
Sums = dict[Name, dict[str, Any]]


def _key(row: Row, keys: Sequence[str]) -> Name:
    return tuple(row[key] for key in keys)


def _sums(rows: Iterable[Row], keys: Sequence[str], measures: Sequence[str]) -> Sums:
    found: Sums = defaultdict(lambda: dict.fromkeys(measures, 0))
    for row in rows:
        sums = found[_key(row, keys)]
        for measure in measures:
            sums[measure] += row.get(measure) or 0
    return dict(found)


def _maxima(rows: Iterable[Row], keys: Sequence[str], measures: Sequence[str]) -> Sums:
    found: Sums = defaultdict(dict)
    for row in rows:
        maxima = found[_key(row, keys)]
        for measure in measures:
            if row.get(measure) is not None:
                maxima[measure] = max(maxima.get(measure, 0), row[measure])
    return dict(found)


def _last(rows: Iterable[Row], keys: Sequence[str]) -> dict[Name, Row]:
    """The row of the newest window."""
    found: dict[Name, Row] = {}
    for row in rows:
        name = _key(row, keys)
        if name not in found or found[name]["window_start"] <= row["window_start"]:
            found[name] = row
    return found


def _ranking(
    title: str,
    found: Sums,
    measure: str,
    columns: Sequence[str],
    cells: Callable[[Name, dict[str, Any]], tuple[str | Text, ...]],
    first: Callable[[Name], bool] = lambda name: False,
) -> Table | None:
    if not found:
        return None
    names = sorted(found, key=lambda name: (not first(name), -found[name][measure], str(name)))
    table = _table(title, *columns)
    for name in names[:MOST_ROWS]:
        _add(table, *cells(name, found[name]))
    return _with_rest(table, names)


NUMBERS = {"in", "out", "acked", "depth", "published", "octets", "count", "failed", "returned", "holds", "times",
           "worst p95 wait", "end to end", "messages", "lasted"}  # fmt: skip


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=column in NUMBERS)
    return table


def _add(table: Table, *cells: str | Text) -> None:
    """A row whose texts are shown as they are: names may look like rich's markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _with_rest(table: Table, names: Sequence[object], most: int = MOST_ROWS) -> Table:
    if len(names) > most:
        table.caption = f"and {len(names) - most:,} more"
        table.caption_justify = "left"
    return table


def _place(name: Name) -> str:
    """A name; with its virtual host where that is not the default one."""
    vhost, place = name
    return shortened(place if vhost in ("/", "") else f"{place} ({vhost})", LONGEST_NAME)


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,.0f}"


def duration(microseconds: float | None) -> str:
    """With three digits and its unit."""
    if microseconds is None:
        return ""
    for below, unit, name in DURATIONS:
        if microseconds < below:
            value = microseconds / unit
            return f"{value:.0f} {name}" if value >= 100 or name == "us" else f"{value:.3g} {name}"
    raise AssertionError("the last limit is endless")


def _clock(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%H:%M:%S")
