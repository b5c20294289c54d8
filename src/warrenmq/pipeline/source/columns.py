"""The columns of a read, by payload: their names and types, and which of them are wanted. Pure.

Records have the columns of Spark's Kafka source where there is such a thing (key, value, partition, offset, timestamp,
headers), `stream` in place of topic, and the properties of AMQP. With payload=json `value` is a struct; with
payload=arrow the columns of the payload stand for themselves, followed by `offset`.
"""

from __future__ import annotations

from collections.abc import Sequence

from warrenmq.events import schema as events
from warrenmq.pipeline.errors import BadOption
from warrenmq.pipeline.source.options import ReadOptions

HEADERS_TYPE = "array<struct<key: string, value: binary>>"

RECORD_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "stream": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": HEADERS_TYPE,
    "exchange": "string",
    "routing_key": "string",
    "redelivered": "boolean",
    "content_type": "string",
    "content_encoding": "string",
    "delivery_mode": "int",
    "priority": "int",
    "correlation_id": "string",
    "reply_to": "string",
    "expiration": "string",
    "message_id": "string",
    "type": "string",
    "user_id": "string",
    "app_id": "string",
    "cluster_id": "string",
}
# Of a stream nothing is ever redelivered; of a queue (drain.py) it may be.
STREAM_COLUMNS = {name: kind for name, kind in RECORD_COLUMNS.items() if name != "redelivered"}
QUEUE_COLUMNS = {name: kind for name, kind in RECORD_COLUMNS.items() if name not in ("stream", "partition", "offset")}

_EVENT_TYPES = {
    events.TIME: "timestamp",
    events.INT8: "tinyint",
    events.INT32: "int",
    events.INT64: "bigint",
    events.TEXT: "string",
    events.NAME: "string",
}
KIND_NAME = "kind_name"
REASON_NAME = "reason_name"
EVENT_COLUMNS = {
    **{column.name: _EVENT_TYPES[column.type] for column in events.COLUMNS},
    KIND_NAME: "string",
    REASON_NAME: "string",
}

# What of the message can be had beside the columns of an Arrow payload; `offset` is, unless other columns are named.
ARROW_EXTRAS = {"offset": "bigint", "stream": "string"}


def schema_of(options: ReadOptions) -> str:
    """The schema of a read as DDL."""
    if options.payload == "raw":
        return _ddl(_wanted(options.columns, STREAM_COLUMNS, list(STREAM_COLUMNS)))
    if options.payload == "json":
        columns = STREAM_COLUMNS | {"value": f"struct<{options.schema}>"}
        return _ddl(_wanted(options.columns, columns, list(columns)))
    if options.schema is None:
        columns = EVENT_COLUMNS | ARROW_EXTRAS
        return _ddl(_wanted(options.columns, columns, [*EVENT_COLUMNS, "offset"]))
    return _arrow_schema_of(options)


def _arrow_schema_of(options: ReadOptions) -> str:
    """A schema that the user gave is passed on as it is: only Spark can read it."""
    names = [name for name in options.columns if name in ARROW_EXTRAS] if options.columns else ["offset"]
    others = [name for name in options.columns if name not in ARROW_EXTRAS]
    if others:
        raise BadOption(
            f"with a schema of its own an Arrow payload has the columns of that schema: leave {', '.join(others)} out "
            f"of `columns`, which can add {', '.join(ARROW_EXTRAS)}"
        )
    return ", ".join([str(options.schema), *(f"`{name}` {ARROW_EXTRAS[name]}" for name in names)])


def _wanted(names: Sequence[str], known: dict[str, str], default: Sequence[str]) -> dict[str, str]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadOption(f"no column {', '.join(unknown)} (option columns): there are {', '.join(known)}")
    return {name: known[name] for name in names or default}


def _ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_names(options: ReadOptions, names: Sequence[str]) -> None:
    """A schema given by .schema() may leave columns out, but not make any up."""
    if options.payload == "arrow" and options.schema is not None:
        return
    known = STREAM_COLUMNS if options.payload != "arrow" else EVENT_COLUMNS | ARROW_EXTRAS
    _wanted(names, known, [])


def check_filter_fields(options: ReadOptions) -> None:
    """A filter over what is not there would silently pass nothing."""
    if options.payload == "arrow":
        known = EVENT_COLUMNS | ARROW_EXTRAS
        prefixes: tuple[str, ...] = ()
        if options.schema is not None:
            return  # the columns are in the schema, which only Spark can read: the executors will tell
    else:
        known = {name: kind for name, kind in STREAM_COLUMNS.items() if name not in _NOT_COMPARED}
        prefixes = ("header.", "value.") if options.payload == "json" else ("header.",)
    for condition in options.conditions:
        if condition.field not in known and not condition.field.startswith(prefixes):
            there = ", ".join([*known, *(f"{prefix}NAME" for prefix in prefixes)])
            raise BadOption(f"the option filter has no field {condition.field!r}: there are {there}")


# Columns that are no texts, numbers or truth values.
_NOT_COMPARED = ("key", "value", "headers", "timestamp")
