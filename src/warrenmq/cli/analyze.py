"""`warren analyze`: what the event log says, once over a range of time or for as long as events come.

Standard output carries the findings; how far it is, and what keeps it from going on, go to standard error. Exit codes:
0 answered, 1 there are no events, 2 it could not be done.

Spark is imported when everything that can be said without it has been said: it takes seconds to start.
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
from warrenmq.pipeline.times import Range, Unreadable, interval, iso, parse_length, range_of

if TYPE_CHECKING:
    from warrenmq.pipeline.jobs.job import Job
    from warrenmq.pipeline.options import Settings

ANSWERED, NO_EVENTS, NOT_DONE = 0, 1, 2
EVENTS_STREAM = "warren.events"
PROBE_LIMIT = 5.0

HOW_TO_TRACE = """Switch tracing on at the start of the broker, for all messages or a share of them:
    warren serve --trace all
    warren serve --trace 0.01
or now, on the page "Trace rules" of a broker that runs. Then let some messages pass, and try again."""


class CannotAnalyze(Exception):
    """Why nothing is analysed, in words for whoever typed the command."""


class NoEvents(Exception):
    """There is nothing to analyse; the text says where was looked."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The flags as they were given."""

    url: str
    user: str
    start: str | None = None
    end: str | None = None
    last: str | None = None
    window: str = "10s"
    jobs: str | None = None
    master: str = "local[*]"
    follow: bool = False
    once: bool = False
    checkpoint: Path | None = None
    trigger: str | None = None
    report: Path | None = None
    output: Path | None = None
    publish: bool = True
    conf: tuple[str, ...] = ()


def analyze(wanted: Wanted) -> int:
    """Analyse as the flags say; the result is the exit code."""
    try:
        _analyze(wanted)
    except NoEvents as nothing:
        print(f"warren: {nothing}\n{HOW_TO_TRACE}", file=sys.stderr)
        return NO_EVENTS
    except (CannotAnalyze, Unreadable, NoPassword) as reason:
        print("warren: " + "\n".join(printable(line) for line in str(reason).splitlines()), file=sys.stderr)
        return NOT_DONE
    return ANSWERED


def _analyze(wanted: Wanted) -> None:
    _check_flags(wanted)
    covers = range_of(wanted.start, wanted.end, wanted.last, datetime.now(UTC))
    window = interval(parse_length(wanted.window))
    factory = _factory(wanted)
    _spark_settings(wanted.conf)
    _require_spark()
    settings, jobs = _settings(window), _jobs(wanted.jobs)
    _require_events(factory)
    session = _follow if wanted.follow else _batch
    session(wanted, factory, covers, settings, jobs)


def _check_flags(wanted: Wanted) -> None:
    """Flags that mean nothing together are refused: none is ignored."""
    ended = {"--report": wanted.report, "--output": wanted.output, "--to": wanted.end}
    for flag in (flag for flag, value in ended.items() if wanted.follow and value):
        raise CannotAnalyze(f"{flag} is for a range of time that has an end: leave out {flag} or --follow")
    endless = {"--checkpoint": wanted.checkpoint, "--trigger": wanted.trigger, "--once": wanted.once}
    for flag in (flag for flag, value in endless.items() if value and not wanted.follow):
        raise CannotAnalyze(f"{flag} is for --follow: add --follow or leave out {flag}")
    if wanted.once and wanted.trigger is not None:
        raise CannotAnalyze("--trigger says how often to look for events, and --once looks once: leave out one of them")


# -- what is needed ----------------------------------------------------------------------------------------------------


def _factory(wanted: Wanted) -> client.ConnectionFactory:
    url = wanted.url if "://" in wanted.url else "amqp://" + wanted.url
    if url.startswith(("http://", "https://")):
        raise CannotAnalyze(f"the analysis reads over AMQP: give the AMQP port, amqp://127.0.0.1:5672, not {url}")
    try:
        factory = client.ConnectionFactory(url, name="warren analyze", recovery=False, connect_timeout=PROBE_LIMIT)
    except client.Misuse as unfit:
        raise CannotAnalyze(str(unfit)) from None
    if "@" in url:
        return factory
    name, password = credentials(wanted.user)
    return factory.with_(username=name, password=password)


def _require_spark() -> None:
    from warrenmq.pipeline.spark.java import NoJava, find_java
    from warrenmq.pipeline.spark.session import SparkMissing, require_spark

    try:
        require_spark()
        find_java()
    except (SparkMissing, NoJava) as missing:
        raise CannotAnalyze(str(missing)) from None


def _settings(window: str) -> Settings:
    from warrenmq.pipeline.options import Settings

    try:
        return Settings(window=window)
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


def _spark_settings(given: tuple[str, ...]) -> dict[str, str]:
    """From KEY=VALUE, as spark-submit takes them."""
    pairs = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, pairs, strict=True):
        if not key.startswith("spark.") or not equals:
            raise CannotAnalyze(f"--conf {text} is no setting of Spark's; it looks like spark.executor.memory=2g")
    return {key: value for key, _, value in pairs}


def _require_events(factory: client.ConnectionFactory) -> None:
    """Ask the broker before Spark starts: an answer in a moment is better than one in ten seconds."""
    try:
        with factory.connect() as connection, connection.channel() as channel:
            channel.queue_declare(EVENTS_STREAM, passive=True)
    except client.NotFound:
        raise NoEvents(f"the broker at {_shown(factory)} keeps no events") from None
    except client.ClientError as failure:
        raise CannotAnalyze(f"no broker can be asked at {_shown(factory)}: {failure}") from None


def _is_there(factory: client.ConnectionFactory) -> bool:
    try:
        factory.connect().close()
    except client.ClientError:
        return False
    return True


def _shown(factory: client.ConnectionFactory) -> str:
    """The address without the password."""
    return f"{factory.host}:{factory.port}"


# -- the two ways ------------------------------------------------------------------------------------------------------


def _batch(
    wanted: Wanted,
    factory: client.ConnectionFactory,
    covers: Range,
    settings: Settings,
    jobs: tuple[Job, ...],
) -> None:
    from warrenmq.pipeline.analysis.batch import Batch
    from warrenmq.pipeline.analysis.collectors import standard
    from warrenmq.pipeline.analysis.event_log import EventLog
    from warrenmq.pipeline.analysis.progress import FINISHED, Progress, status_answer
    from warrenmq.pipeline.publish.answers import Run, document_of
    from warrenmq.pipeline.publish.parquet import write_parquet

    run = Run(str(uuid.uuid4()), "batch")
    documents: list[dict[str, Any]] = []
    with (
        progress_view() as tell,
        _plain_failures(),
        _session(wanted, factory) as spark,
        _written(wanted, factory) as write,
    ):
        tell(Progress("reading events"))
        with Batch(spark, EventLog(), standard(), jobs, settings, covers) as batch:
            seen = batch.look()
            if not seen.events:
                raise NoEvents(f"no events from {iso(covers.start)} to {iso(covers.end)}")
            for found in batch.answers(tell):
                documents.append(document_of(found.answer, run, 0, covers, datetime.now(UTC)))
                write(documents[-1])
                if wanted.output is not None:
                    write_parquet(wanted.output, found.answer.job, found.table, run)
            done = Progress("done", batches=1, events=seen.events, newest=seen.newest, lag=0)
            status = status_answer(run, done, FINISHED, settings.window_seconds)
            write(document_of(status, run, 0, covers, datetime.now(UTC)))
    about = _about(factory, covers, settings, seen.events)
    show_findings(documents, about, output_console())
    if wanted.output is not None:
        print(f"Parquet: {wanted.output}")
    if wanted.report is not None:
        _write_report(wanted.report, documents, about)


def _follow(
    wanted: Wanted,
    factory: client.ConnectionFactory,
    covers: Range,
    settings: Settings,
    jobs: tuple[Job, ...],
) -> None:
    from warrenmq.pipeline.analysis.collectors import standard
    from warrenmq.pipeline.analysis.event_log import EventLog
    from warrenmq.pipeline.analysis.follow import Follow, FollowOptions

    folder = (wanted.checkpoint or _default_checkpoint(factory, wanted.window)).resolve()
    trigger = interval(parse_length(wanted.trigger or "1s"))
    options = FollowOptions(folder, covers.start, trigger, wanted.once)
    with (
        progress_view() as tell,
        _plain_failures(),
        _session(wanted, factory) as spark,
        _written(wanted, factory) as write,
    ):

        def write_and_show(*documents: dict[str, Any]) -> None:
            write(*documents)
            for document in documents:
                show_anomalies(document, output_console())

        following = Follow(
            spark,
            EventLog(),
            standard(),
            jobs,
            settings,
            options,
            write_and_show,
            lambda: _is_there(factory),
            tell,
        )
        with _stop_on_signal() as stop:
            following.run(stop)


def _session(wanted: Wanted, factory: client.ConnectionFactory) -> AbstractContextManager[Any]:
    """Spark, whose processes find the URL in their environment."""
    from warrenmq.pipeline.analysis.event_log import URL_VARIABLE
    from warrenmq.pipeline.spark.session import running_session

    secret = {URL_VARIABLE: format_url(factory, with_password=True)}
    return running_session(wanted.master, "warren analyze", _spark_settings(wanted.conf), secret)


@contextmanager
def _written(wanted: Wanted, factory: client.ConnectionFactory) -> Iterator[Callable[..., object]]:
    """What takes documents: the broker, or nobody with --no-publish."""
    from warrenmq.pipeline.publish.results import ResultWriter

    if not wanted.publish:
        yield lambda *documents: None
        return
    with ResultWriter(format_url(factory, with_password=True)) as writer:
        yield writer.write


@contextmanager
def _plain_failures() -> Iterator[None]:
    """One line instead of a traceback for what can go wrong without a bug."""
    from warrenmq.pipeline.failures import AnalysisFailed, plain_failures

    try:
        with plain_failures():
            yield
    except AnalysisFailed as failure:
        raise CannotAnalyze(str(failure)) from failure
    except client.ClientError as failure:
        raise CannotAnalyze(f"the broker cannot be reached: {failure}") from failure


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Set at SIGINT and SIGTERM. Spark has put a handler of its own there, which would raise in the middle."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _default_checkpoint(factory: client.ConnectionFactory, window: str) -> Path:
    """One folder for each broker and window, where programs keep what they go on with."""
    base = os.environ.get("XDG_STATE_HOME")
    state = Path(base) if base else Path.home() / ".local" / "state"
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{factory.host}-{factory.port}-{window}")
    return state / "warrenmq" / "analysis" / name


def _about(factory: client.ConnectionFactory, covers: Range, settings: Settings, events: int) -> dict[str, str]:
    return {
        "Broker": _shown(factory),
        "Range": f"{iso(covers.start)} to {iso(covers.end)}",
        "Events": f"{events:,}",
        "Window": settings.window,
        "Written": iso(datetime.now(UTC)),
        "Version": f"WarrenMQ {warrenmq.__version__}",
    }


def _write_report(path: Path, documents: list[dict[str, Any]], about: dict[str, str]) -> None:
    from warrenmq.pipeline.publish.report import write_report

    write_report(path, documents, about)
    print(f"Report: {path}")
