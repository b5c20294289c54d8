"""The options of a read, validated once on the driver.

Spark passes option names in lower case. An unknown name is an error that lists the known ones, so no option is silently
ignored. The value is pickled to executors; instead of the broker's URL it may hold the name of a file or an environment
variable (access.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from warrenmq.events.schema import STREAM_NAME
from warrenmq.pipeline.errors import BadOption
from warrenmq.pipeline.source.access import ACCESS_OPTIONS, BrokerAccess
from warrenmq.pipeline.source.filters import Condition, parse_filter
from warrenmq.pipeline.source.offsets import EARLIEST, LATEST, StreamPositions, parse_positions, parse_time

PAYLOADS = ("raw", "json", "arrow")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")  # for malformed payloads, as in Spark's own sources

OPTIONS = (
    *ACCESS_OPTIONS,
    "stream",
    "streamPattern",
    "httpUrl",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxRecordsPerBatch",
    "partitions",
    "prefetch",
    "filter",
    "payload",
    "schema",
    "mode",
    "columns",
    "failOnDataLoss",
    "readerName",
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Validated options. `starting` None: earliest for a batch, latest for a stream."""

    access: BrokerAccess
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    http_url: str | None = None
    starting: StreamPositions | None = None
    ending: StreamPositions = field(default_factory=lambda: StreamPositions(LATEST))
    max_records: int | None = None
    partitions: int | None = None
    prefetch: int | None = None
    conditions: tuple[Condition, ...] = ()
    payload: str = "raw"
    schema: str | None = None
    mode: str = "PERMISSIVE"
    columns: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    reader_name: str | None = None

    @property
    def is_event_log(self) -> bool:
        """Return True if the payload has the schema of the event log."""
        return self.payload == "arrow" and self.schema is None and self.streams == (STREAM_NAME,)


def parse_read_options(given: Mapping[str, str], *, is_streaming: bool | None = None) -> ReadOptions:
    """Parse options; raise BadOption with what to do. `is_streaming` None: not known yet."""
    options = known_options(given, OPTIONS, hints={"queue": _QUEUE_HINT, "topic": "streams are named by `stream`"})
    payload = _choice(options, "payload", PAYLOADS, "raw")
    streams = _names(options.get("stream"))
    pattern = options.get("streampattern")
    if bool(streams) == bool(pattern):
        raise BadOption("name what to read: the option `stream` (a name, or several with commas), or `streamPattern`")
    if pattern is not None:
        _check_pattern(pattern, options)
    if is_streaming is not None:
        _check_streaming(options, is_streaming)
    read = ReadOptions(
        access=BrokerAccess.of(options),
        streams=streams,
        pattern=pattern,
        http_url=options.get("httpurl"),
        starting=_starting(options),
        ending=_ending(options),
        max_records=positive(options, "maxRecordsPerBatch"),
        partitions=positive(options, "partitions"),
        prefetch=positive(options, "prefetch", most=65535),
        conditions=parse_filter(options["filter"]) if "filter" in options else (),
        payload=payload,
        schema=options.get("schema"),
        mode=_choice(options, "mode", MODES, "PERMISSIVE", upper=True),
        columns=_names(options.get("columns")),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        reader_name=options.get("readername") or None,
    )
    _check_combination(read, options)
    return read


_QUEUE_HINT = (
    "a classic queue forgets what was acked, so a read that fails would lose messages; "
    "use warrenmq.pipeline.drain(spark, url, queue, function), which acks after the function has returned"
)


def _check_streaming(options: Mapping[str, str], is_streaming: bool) -> None:
    """Check options that are for batches only, or for streaming only."""
    for name in ("endingOffsets", "endingTimestamp") if is_streaming else ("maxRecordsPerBatch", "readerName"):
        if name.lower() in options:
            why = "a streaming read has no end" if is_streaming else "it is for streaming reads (spark.readStream)"
            raise BadOption(f"leave out the option {name}: {why}")


def _check_combination(read: ReadOptions, options: Mapping[str, str]) -> None:
    """Check options that exclude or require each other."""
    if read.payload == "json" and read.schema is None:
        raise BadOption('payload=json needs the option `schema`, for instance "id bigint, price double"')
    if read.payload == "arrow" and read.schema is None and not read.is_event_log:
        raise BadOption(f"payload=arrow needs the option `schema` (only that of {STREAM_NAME} is known)")
    if read.payload == "raw":
        for name in ("schema", "mode"):
            if name in options:
                raise BadOption(f"the option `{name}` is for payload=json and payload=arrow")
    if read.http_url is not None and read.pattern is None:
        raise BadOption("the option `httpUrl` is for `streamPattern` only")


def known_options(
    given: Mapping[str, str], known: tuple[str, ...], hints: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return options by their names in lower case; raise BadOption for unknown ones."""
    names = {name.lower() for name in known}
    options: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered == "path":
            raise BadOption("warrenmq reads streams, not paths: leave load() and save() empty")
        if lowered not in names:
            hint = (hints or {}).get(lowered)
            raise BadOption(f"no option `{name}`: " + (hint or f"there are {', '.join(known)}"))
        options[lowered] = value
    return options


def positive(options: Mapping[str, str], name: str, most: int = 2**31 - 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or not 0 < int(text) <= most:
        raise BadOption(f"the option {name} is a whole number from 1 to {most}, not {text!r}")
    return int(text)


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise BadOption(f"the option {name} is true or false, not {text!r}")
    return text.lower() == "true"


def _choice(
    options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str, *, upper: bool = False
) -> str:
    text = options.get(name, default)
    text = text.upper() if upper else text.lower()
    if text not in choices:
        raise BadOption(f"the option {name} is one of {', '.join(choices)}, not {options[name]!r}")
    return text


def _names(text: str | None) -> tuple[str, ...]:
    """EncodedNames with commas between; each once."""
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def _check_pattern(pattern: str, options: Mapping[str, str]) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadOption(
            f"the option streamPattern is a regular expression; {pattern!r} is not valid: {error}"
        ) from None
    if "httpurl" not in options:
        raise BadOption(
            "streamPattern needs the names of the streams, which only the broker's HTTP API lists: "
            "add the option httpUrl, for instance http://127.0.0.1:15672, or name the streams by `stream`"
        )


def _starting(options: Mapping[str, str]) -> StreamPositions | None:
    _require_one(options, "startingOffsets", "startingTimestamp")
    if "startingtimestamp" in options:
        return StreamPositions(parse_time("startingTimestamp", options["startingtimestamp"]))
    if "startingoffsets" in options:
        return parse_positions("startingOffsets", options["startingoffsets"])
    return None


def _ending(options: Mapping[str, str]) -> StreamPositions:
    _require_one(options, "endingOffsets", "endingTimestamp")
    if "endingtimestamp" in options:
        return StreamPositions(parse_time("endingTimestamp", options["endingtimestamp"]))
    positions = parse_positions("endingOffsets", options.get("endingoffsets", LATEST))
    if EARLIEST in (positions.default, *positions.by_stream.values()):
        raise BadOption("endingOffsets cannot be earliest: there would be nothing to read")
    return positions


def _require_one(options: Mapping[str, str], first: str, second: str) -> None:
    if first.lower() in options and second.lower() in options:
        raise BadOption(f"give {first} or {second}, not both")
