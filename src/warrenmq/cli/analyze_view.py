"""Shows an analysis in a terminal of 80 columns: progress, then findings.

Tables sum up the rows of all windows. Texts that come from messages are made printable first.
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
    from warrenmq.pipeline.analysis.progress import AnalysisProgress, ReportProgress

Row = Mapping[str, Any]
MAX_ROWS = 8
MAX_PRIORITY_ROWS = 16  # rows: some queues with some priorities each
MAX_ANOMALIES = 10
MAX_NAME_LENGTH = 26
PLAIN_LINE_INTERVAL = 10.0
DURATIONS = (
    (1_000, 1, "us"),
    (1_000_000, 1_000, "ms"),
    (120_000_000, 1_000_000, "s"),
    (float("inf"), 60_000_000, "min"),
)


# -- progress ----------------------------------------------------------------------------------------------------------


@contextmanager
def progress_view() -> Iterator[ReportProgress]:
    """Return a function that shows progress, from any thread: as a bar on a terminal, else as occasional lines."""
    if not sys.stderr.isatty():
        yield _ProgressLines().report
        return
    from rich import progress as bars

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(20),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("connecting", total=None)

        def report(progress: AnalysisProgress) -> None:
            done, total = _share(progress)
            bar.update(task, description=progress_text(progress), completed=done, total=total)

        yield report


class _ProgressLines:
    """A line for each new activity, and every PLAIN_LINE_INTERVAL seconds while it continues."""

    def __init__(self) -> None:
        self._activity = ""
        self._at = 0.0

    def report(self, progress: AnalysisProgress) -> None:
        now = time.monotonic()
        if progress.activity == self._activity and now - self._at < PLAIN_LINE_INTERVAL:
            return
        self._activity, self._at = progress.activity, now
        print(f"warren: {progress_text(progress)}", file=sys.stderr, flush=True)


def progress_text(progress: AnalysisProgress) -> str:
    """Return one line with what is known."""
    parts = [printable(progress.activity)]
    if progress.total is not None:
        parts.append(f"{progress.done} of {progress.total}")
    if progress.batches:
        parts.append(f"batches {progress.batches:,}")
        parts.append(f"events {progress.events:,}")
        parts.append("lag ?" if progress.lag is None else f"lag {progress.lag:,}")
    if progress.late:
        parts.append(f"late {progress.late:,}")
    return " · ".join(parts)


def _share(progress: AnalysisProgress) -> tuple[int, int | None]:
    if progress.total is not None:
        return progress.done, progress.total
    if progress.lag is None:
        return 0, None
    return progress.events, max(1, progress.events + progress.lag)


# -- findings ----------------------------------------------------------------------------------------------------------


def show_findings(documents: Sequence[Row], about: Mapping[str, str], console: Console) -> None:
    """Print the most important answers as tables; jobs that did not run or found nothing are left out."""
    rows: dict[str, Sequence[Row]] = {document["job"]: document["rows"] for document in documents}
    console.print(Text(f"{about['Events']} events, {about['TimeRange']}"))
    shown = [
        table
        for make in (
            _queues,
            _priorities,
            _exchanges,
            _failures,
            _retries,
            _dead_letters,
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
    """Print the anomalies of the newest window of a --follow."""
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
    for row in worst[:MAX_ANOMALIES]:
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
    names = sorted({*moved, *waited, *depth}, key=lambda name: (-moved.get(name, {}).get("enqueued", 0), name))
    if not names:
        return None
    table = _table("Queues", "queue", "in", "out", "acked", "worst p95 wait", "end to end", "depth")
    for name in names[:MAX_ROWS]:
        counts, times = moved.get(name, {}), waited.get(name, {})
        _add(
            table,
            _qualified(name),
            _count(counts.get("enqueued")),
            _count(counts.get("delivered")),
            _count(counts.get("acked")),
            duration(times.get("waiting_p95_us")),
            duration(times.get("end_to_end_p95_us")),
            _count(depth.get(name, {}).get("depth")),
        )
    return _with_rest(table, names)


def _priorities(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    """By queue, highest priority first."""
    keys, times = ("vhost", "queue", "priority"), ("waiting_p50_us", "waiting_p99_us", "waiting_max_us")
    counts = _sums(rows.get("priorities", ()), keys, ("delivered",))
    waited = _maxima(rows.get("priorities", ()), keys, times)
    names = sorted(counts, key=lambda name: (*name[:2], -name[2]))
    if not names:
        return None
    table = _table("Priorities", "queue", "priority", "out", "worst p50 wait", "p99", "longest")
    for name in names[:MAX_PRIORITY_ROWS]:
        waits = [duration(waited[name].get(measure)) for measure in times]
        _add(table, _qualified(name[:2]), str(name[2]), _count(counts[name]["delivered"]), *waits)
    return _with_rest(table, names, MAX_PRIORITY_ROWS)


def _exchanges(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    sums = _sums(
        (row for row in rows.get("throughput", ()) if row["what"] == "exchange"),
        ("vhost", "name"),
        ("published", "bytes"),
    )
    names = sorted((name for name in sums if sums[name]["published"]), key=lambda name: -sums[name]["published"])
    if not names:
        return None
    table = _table("Exchanges", "exchange", "published", "bytes")
    for name in names[:MAX_ROWS]:
        _add(table, _qualified(name), _count(sums[name]["published"]), _count(sums[name]["bytes"]))
    return _with_rest(table, names)


def _failures(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("failures", ()), ("vhost", "queue", "kind", "reason"), ("count",))
    keys = {_key(row, ("vhost", "queue", "kind", "reason")): row for row in rows.get("failures", ()) if row["top_key"]}
    return _ranking("Failures", found, "count", ("queue", "what", "why", "count", "top key"), lambda name, sums: (
        _qualified(name[:2]), printable(name[2]), printable(name[3]), _count(sums["count"]),
        shortened(keys.get(name, {}).get("top_key", ""), MAX_NAME_LENGTH),
    ))  # fmt: skip


def _retries(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    """Queues, and routing keys that make a storm, by what came back; rate and reason are those of the worst window."""
    names = ("vhost", "queue", "what", "name")
    storms = {_key(row, names) for row in rows.get("retries", ()) if row["storm"]}
    shown = [row for row in rows.get("retries", ()) if row["what"] == "queue" or _key(row, names) in storms]
    worst = {_key(row, names): row for row in sorted(shown, key=lambda row: (row["storm"], row["returned"]))}
    columns = ("queue", "key", "retries", "per minute", "usual", "why", "")
    return _ranking("Retries", _sums(shown, names, ("returned",)), "returned", columns, lambda name, sums: (
        _qualified(name[:2]), shortened(name[3], MAX_NAME_LENGTH) if name[2] == "key" else "",
        _count(sums["returned"]), _per_minute(worst[name]["per_second"]), _per_minute(worst[name]["usual_per_second"]),
        printable(worst[name]["reason"] or ""), Text("storm", style="red") if name in storms else "",
    ), first=lambda name: name in storms)  # fmt: skip


def _dead_letters(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    names = ("vhost", "queue", "reason", "exchange", "routing_key")
    found = _sums(rows.get("dead_letters", ()), names, ("count",))
    examples = {
        _key(row, names): row["example_uids"][-1] for row in rows.get("dead_letters", ()) if row["example_uids"]
    }
    columns = ("queue", "why", "exchange", "key", "count", "example")
    return _ranking("Dead letters", found, "count", columns, lambda name, sums: (
        _qualified(name[:2]), printable(name[2]), shortened(name[3], MAX_NAME_LENGTH),
        shortened(name[4], MAX_NAME_LENGTH), _count(sums["count"]), examples.get(name, ""),
    ))  # fmt: skip


def _hot_keys(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("hot_keys", ()), ("vhost", "exchange", "routing_key"), ("published", "failed"))
    poison = {_key(row, ("vhost", "exchange", "routing_key")) for row in rows.get("hot_keys", ()) if row["poison"]}
    return _ranking("Hot keys", found, "published", ("exchange", "key", "published", "failed", ""), lambda name, sums: (
        _qualified(name[:2]), shortened(name[2], MAX_NAME_LENGTH), _count(sums["published"]), _count(sums["failed"]),
        Text("poison", style="red") if name in poison else "",
    ), first=lambda name: name in poison)  # fmt: skip


def _stuck(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    latest = _last(rows.get("consumers", ()), ("vhost", "queue", "consumer", "connection", "channel"))
    stuck = [row for row in latest.values() if row["stuck"]]
    if not stuck:
        return None
    table = _table("Stuck consumers", "queue", "consumer", "holds", "since")
    for row in stuck[:MAX_ROWS]:
        since = _clock(row["stuck_since"]) if row["stuck_since"] else ""
        consumer = Text(shortened(row["consumer"], MAX_NAME_LENGTH), style="red")
        _add(table, _qualified((row["vhost"], row["queue"])), consumer, _count(row["outstanding"]), since)
    return _with_rest(table, stuck)


def _unroutable(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("unroutable", ()), ("vhost", "exchange", "routing_key"), ("count", "returned"))
    return _ranking("Unroutable", found, "count", ("exchange", "key", "count", "returned"), lambda name, sums: (
        _qualified(name[:2]), shortened(name[2], MAX_NAME_LENGTH), _count(sums["count"]), _count(sums["returned"]),
    ))  # fmt: skip


def _duplicates(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = _sums(rows.get("duplicates", ()), ("vhost", "what", "name"), ("times",))
    return _ranking("Duplicates", found, "times", ("what", "name", "times"), lambda name, sums: (
        printable(name[1]), shortened(name[2], MAX_NAME_LENGTH), _count(sums["times"]),
    ))  # fmt: skip


def _sessions(rows: Mapping[str, Sequence[Row]]) -> Table | None:
    found = sorted(rows.get("sessions", ()), key=lambda row: (-(row["failed"] or 0), -(row["duration_us"] or 0)))
    if not found:
        return None
    table = _table("Sessions: failed, then longest", "correlation id", "messages", "failed", "lasted")
    for row in found[:MAX_ROWS]:
        name = shortened(row["correlation_id"], MAX_NAME_LENGTH)
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
    """Return the row of the newest window of each name."""
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
    for name in names[:MAX_ROWS]:
        _add(table, *cells(name, found[name]))
    return _with_rest(table, names)


NUMBERS = {"in", "out", "acked", "depth", "published", "bytes", "count", "failed", "returned", "holds", "times",
           "worst p95 wait", "end to end", "messages", "lasted", "retries", "per minute", "usual"}  # fmt: skip
WHOLE = {"why", "example"}  # shown in full: names are shortened first


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        is_number = column in NUMBERS
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number or column in WHOLE)
    return table


def _add(table: Table, *cells: str | Text) -> None:
    """Add a row of literal texts: names may look like rich's markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def _with_rest(table: Table, names: Sequence[object], max_rows: int = MAX_ROWS) -> Table:
    if len(names) > max_rows:
        table.caption = f"and {len(names) - max_rows:,} more"
        table.caption_justify = "left"
    return table


def _qualified(name: Name) -> str:
    """Return a name, with its virtual host unless that is the default one."""
    vhost, local = name
    return shortened(local if vhost in ("/", "") else f"{local} ({vhost})", MAX_NAME_LENGTH)


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,.0f}"


def _per_minute(per_second: float | None) -> str:
    return _count(None if per_second is None else 60 * per_second)


def duration(microseconds: float | None) -> str:
    """Format with three digits and a unit."""
    if microseconds is None:
        return ""
    for below, unit, name in DURATIONS:
        if microseconds < below:
            value = microseconds / unit
            return f"{value:.0f} {name}" if value >= 100 or name == "us" else f"{value:.3g} {name}"
    raise AssertionError("the last limit is infinite")


def _clock(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%H:%M:%S")
