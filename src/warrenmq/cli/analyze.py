"""`warren analyze`: analyse the event log, once over a time range or for as long as events come.

Findings go to standard output, progress and errors to standard error. Exit codes: 0 answered, 1 no events, 2 failed.

Spark takes seconds to start, so everything that can be checked without it is checked first, and few events are analysed
without it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warrenmq
from warrenmq import client
from warrenmq.cli.analyze_view import progress_view, show_anomalies, show_findings
from warrenmq.cli.console import NoPassword, credentials, output_console
from warrenmq.cli.printable import printable
from warrenmq.client.url import format_url
from warrenmq.pipeline.times import InvalidTime, TimeRange, iso, parse_duration, spark_interval, time_range

if TYPE_CHECKING:
    from warrenmq.pipeline.analysis.batch import BatchAnalysis, RangeSummary
    from warrenmq.pipeline.analysis.local import LocalAnalysis
    from warrenmq.pipeline.analysis.progress import ReportProgress
    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import AnalysisOptions

ANSWERED, NO_EVENTS, ANALYSIS_FAILED = 0, 1, 2
EVENTS_STREAM = "warren.events"
LOCAL_MASTER = "local[*]"
PROBE_TIMEOUT = 5.0

HOW_TO_TRACE = """Switch tracing on at the start of the broker, for all messages or a share of them:
    warren serve --trace all
    warren serve --trace 0.01
or now, on the page "Trace rules" of a running broker. Then let some messages pass, and try again."""


class CannotAnalyze(Exception):
    """Why the analysis cannot run, as a text for the user."""


class NoEvents(Exception):
    """There is nothing to analyse; the text says where it was looked for."""


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """The flags of the command."""

    url: str
    user: str
    start: str | None = None
    end: str | None = None
    last: str | None = None
    window: str = "10s"
    jobs: str | None = None
    master: str | None = None
    follow: bool = False
    once: bool = False
    checkpoint: Path | None = None
    trigger: str | None = None
    report: Path | None = None
    output: Path | None = None
    publish: bool = True
    conf: tuple[str, ...] = ()


def analyze(flags: AnalyzeOptions) -> int:
    """Run the command; return the exit code."""
    try:
        _analyze(flags)
    except NoEvents as reason:
        print(f"warren: {reason}\n{HOW_TO_TRACE}", file=sys.stderr)
        return NO_EVENTS
    except (CannotAnalyze, InvalidTime, NoPassword) as reason:
        print("warren: " + "\n".join(printable(line) for line in str(reason).splitlines()), file=sys.stderr)
        return ANALYSIS_FAILED
    return ANSWERED


def _analyze(flags: AnalyzeOptions) -> None:
    _check_flags(flags)
    covers = time_range(flags.start, flags.end, flags.last, datetime.now(UTC))
    window = spark_interval(parse_duration(flags.window))
    factory = _factory(flags)
    _spark_conf(flags.conf)
    _require_spark()
    options, jobs = _options(window), _jobs(flags.jobs)
    _require_events(factory)
    run = _follow if flags.follow else _batch
    run(flags, factory, covers, options, jobs)


def _check_flags(flags: AnalyzeOptions) -> None:
    """Refuse flags that contradict each other, rather than ignore one."""
    batch_only = {"--report": flags.report, "--output": flags.output, "--to": flags.end}
    for flag in (flag for flag, value in batch_only.items() if flags.follow and value):
        raise CannotAnalyze(f"{flag} is for a time range that has an end: leave out {flag} or --follow")
    follow_only = {"--checkpoint": flags.checkpoint, "--trigger": flags.trigger, "--once": flags.once}
    for flag in (flag for flag, value in follow_only.items() if value and not flags.follow):
        raise CannotAnalyze(f"{flag} is for --follow: add --follow or leave out {flag}")
    if flags.once and flags.trigger is not None:
        raise CannotAnalyze(
            "--trigger sets how often to read events, and --once reads them once: leave out one of them"
        )


# -- checks before Spark starts ----------------------------------------------------------------------------------------


def _factory(flags: AnalyzeOptions) -> client.ConnectionFactory:
    url = flags.url if "://" in flags.url else "amqp://" + flags.url
    if url.startswith(("http://", "https://")):
        raise CannotAnalyze(f"the analysis reads over AMQP: give the AMQP port, amqp://127.0.0.1:5672, not {url}")
    try:
        factory = client.ConnectionFactory(url, name="warren analyze", recovery=False, connect_timeout=PROBE_TIMEOUT)
    except client.Misuse as unfit:
        raise CannotAnalyze(str(unfit)) from None
    if "@" in url:
        return factory
    name, password = credentials(flags.user)
    return factory.with_(username=name, password=password)


def _require_spark() -> None:
    from warrenmq.pipeline.spark.java import JavaNotFound, find_java
    from warrenmq.pipeline.spark.session import SparkNotInstalled, require_spark

    try:
        require_spark()
        find_java()
    except (SparkNotInstalled, JavaNotFound) as missing:
        raise CannotAnalyze(str(missing)) from None


def _options(window: str) -> AnalysisOptions:
    from warrenmq.pipeline.options import AnalysisOptions

    try:
        return AnalysisOptions(window=window)
    except ValueError as unfit:
        raise CannotAnalyze(str(unfit)) from None


def _jobs(names: str | None) -> tuple[Job, ...]:
    from warrenmq.pipeline import jobs

    if names is None:
        return jobs.ALL
    known = {job.name: job for job in jobs.ALL}
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise CannotAnalyze(f"there is no job '{name}'; there are {', '.join(known)}")
    if not chosen:
        raise CannotAnalyze(f"--jobs names no job; there are {', '.join(known)}")
    return tuple(job for job in jobs.ALL if job.name in chosen)


def _spark_conf(given: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE, as spark-submit takes them."""
    pairs = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, pairs, strict=True):
        if not key.startswith("spark.") or not equals:
            raise CannotAnalyze(f"--conf {text} is not a Spark setting; write spark.executor.memory=2g")
    return {key: value for key, _, value in pairs}


def _require_events(factory: client.ConnectionFactory) -> None:
    """Check that the broker has an event log: fails at once instead of after Spark has started."""
    try:
        with factory.connect() as connection, connection.channel() as channel:
            channel.queue_declare(EVENTS_STREAM, passive=True)
    except client.NotFound:
        raise NoEvents(f"the broker at {_address(factory)} has no event log") from None
    except client.ClientError as failure:
        raise CannotAnalyze(f"cannot connect to the broker at {_address(factory)}: {failure}") from None


def _is_reachable(factory: client.ConnectionFactory) -> bool:
    try:
        factory.connect().close()
    except client.ClientError:
        return False
    return True


def _address(factory: client.ConnectionFactory) -> str:
    """Return the address without the password."""
    return f"{factory.host}:{factory.port}"


# -- batch and follow --------------------------------------------------------------------------------------------------


def _batch(
    flags: AnalyzeOptions,
    factory: client.ConnectionFactory,
    covers: TimeRange,
    options: AnalysisOptions,
    jobs: tuple[Job, ...],
) -> None:
    from warrenmq.pipeline.analysis.progress import FINISHED, AnalysisProgress, status_answer
    from warrenmq.pipeline.publish.results import Run, document_of, write_parquet

    run = Run(str(uuid.uuid4()), "batch")
    documents: list[dict[str, Any]] = []
    with (
        progress_view() as report,
        _one_line_failures(),
        _read_range(flags, factory, covers, options, jobs, report) as (analysis, summary),
        _publisher(flags, factory) as write,
    ):
        if not summary.events:
            raise NoEvents(f"no events from {iso(covers.start)} to {iso(covers.end)}")
        for result in analysis.answers(report):
            documents.append(document_of(result.answer, run, 0, covers, datetime.now(UTC)))
            write(documents[-1])
            if flags.output is not None:
                write_parquet(flags.output, result.answer.job, result.table, run)
        done = AnalysisProgress("done", batches=1, events=summary.events, newest=summary.newest, lag=0)
        status = status_answer(run, done, FINISHED, options.window_seconds)
        write(document_of(status, run, 0, covers, datetime.now(UTC)))
    about = _about(factory, covers, options, summary.events)
    show_findings(documents, about, output_console())
    if flags.output is not None:
        print(f"Parquet: {flags.output}")
    if flags.report is not None:
        _write_report(flags.report, documents, about)


@contextmanager
def _read_range(
    flags: AnalyzeOptions,
    factory: client.ConnectionFactory,
    covers: TimeRange,
    options: AnalysisOptions,
    jobs: tuple[Job, ...],
    report: ReportProgress,
) -> Iterator[tuple[BatchAnalysis | LocalAnalysis, RangeSummary]]:
    """Read and count the events: in this process, or by Spark if they are many or flags are for Spark."""
    from warrenmq.pipeline.analysis.batch import BatchAnalysis
    from warrenmq.pipeline.analysis.event_log import EventLog, standard_groups
    from warrenmq.pipeline.analysis.local import LocalAnalysis, TooManyEvents
    from warrenmq.pipeline.analysis.progress import AnalysisProgress

    if flags.master is None and not flags.conf:
        report(AnalysisProgress("reading events"))
        log = EventLog({"url": format_url(factory, with_password=True)})
        local = LocalAnalysis(log, standard_groups(), jobs, options, covers)
        try:
            summary = local.read_events()
        except TooManyEvents:
            pass
        else:
            yield local, summary
            return
    with _session(flags, factory, report) as spark:
        report(AnalysisProgress("reading events"))
        with BatchAnalysis(spark, EventLog(), standard_groups(), jobs, options, covers) as batch:
            yield batch, batch.read_events()


def _follow(
    flags: AnalyzeOptions,
    factory: client.ConnectionFactory,
    covers: TimeRange,
    options: AnalysisOptions,
    jobs: tuple[Job, ...],
) -> None:
    from warrenmq.pipeline.analysis.event_log import EventLog, standard_groups
    from warrenmq.pipeline.analysis.follow import FollowAnalysis, FollowOptions

    folder = (flags.checkpoint or _default_checkpoint(factory, flags.window)).resolve()
    trigger = spark_interval(parse_duration(flags.trigger or "1s"))
    follow = FollowOptions(folder, covers.start, trigger, flags.once)
    with (
        progress_view() as report,
        _one_line_failures(),
        _session(flags, factory, report) as spark,
        _publisher(flags, factory) as write,
    ):

        def write_and_show(*documents: dict[str, Any]) -> None:
            write(*documents)
            for document in documents:
                show_anomalies(document, output_console())

        following = FollowAnalysis(
            spark,
            EventLog(),
            standard_groups(),
            jobs,
            options,
            follow,
            write_and_show,
            lambda: _is_reachable(factory),
            report,
        )
        with _stop_on_signal() as stop:
            following.run(stop)


def _session(
    flags: AnalyzeOptions, factory: client.ConnectionFactory, report: ReportProgress
) -> AbstractContextManager[Any]:
    """Start Spark, with the URL in the environment of its processes."""
    from warrenmq.pipeline.analysis.event_log import URL_VARIABLE
    from warrenmq.pipeline.analysis.progress import AnalysisProgress
    from warrenmq.pipeline.spark.session import running_session

    report(AnalysisProgress("starting Spark"))
    secret = {URL_VARIABLE: format_url(factory, with_password=True)}
    return running_session(flags.master or LOCAL_MASTER, "warren analyze", _spark_conf(flags.conf), secret)


@contextmanager
def _publisher(flags: AnalyzeOptions, factory: client.ConnectionFactory) -> Iterator[Callable[..., object]]:
    """Return a function that publishes documents; with --no-publish it does nothing."""
    from warrenmq.pipeline.publish.results import ResultWriter

    if not flags.publish:
        yield lambda *documents: None
        return
    with ResultWriter(format_url(factory, with_password=True)) as writer:
        yield writer.write


@contextmanager
def _one_line_failures() -> Iterator[None]:
    """Show expected failures as one line instead of a traceback."""
    from warrenmq.pipeline.errors import AnalysisFailed, PipelineError, spark_failures

    try:
        with spark_failures():
            yield
    except (AnalysisFailed, PipelineError) as failure:
        raise CannotAnalyze(str(failure)) from failure
    except client.ClientError as failure:
        raise CannotAnalyze(f"the broker cannot be reached: {failure}") from failure


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Return an event that SIGINT and SIGTERM set. Replaces Spark's handler, which would raise an exception."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _default_checkpoint(factory: client.ConnectionFactory, window: str) -> Path:
    """Return a folder under XDG_STATE_HOME, one for each broker and window."""
    base = os.environ.get("XDG_STATE_HOME")
    state = Path(base) if base else Path.home() / ".local" / "state"
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{factory.host}-{factory.port}-{window}")
    return state / "warrenmq" / "analysis" / name


def _about(
    factory: client.ConnectionFactory, covers: TimeRange, options: AnalysisOptions, events: int
) -> dict[str, str]:
    return {
        "Broker": _address(factory),
        "TimeRange": f"{iso(covers.start)} to {iso(covers.end)}",
        "Events": f"{events:,}",
        "Window": options.window,
        "Written": iso(datetime.now(UTC)),
        "Version": f"WarrenMQ {warrenmq.__version__}",
    }


def _write_report(path: Path, documents: list[dict[str, Any]], about: dict[str, str]) -> None:
    from warrenmq.pipeline.publish.report import write_report

    write_report(path, documents, about)
    print(f"Report: {path}")
