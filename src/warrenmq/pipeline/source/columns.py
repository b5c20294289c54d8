"""The columns of a read, by payload: names, types and selection. Pure.

Records have the columns of Spark's Kafka source (key, value, partition, offset, timestamp, headers), with `stream`
instead of topic, and the properties of AMQP. With payload=json `value` is a struct; with payload=arrow the columns are
those of the payload, followed by `offset`.
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
# Streams never redeliver; queues (drain.py) may.
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

# Columns of the message that can be selected beside those of an Arrow payload; the default is `offset`.
ARROW_EXTRAS = {"offset": "bigint", "stream": "string"}


def schema_of(options: ReadOptions) -> str:
    """Return the schema of a read as DDL."""
    if options.payload == "raw":
        return _ddl(_select(options.columns, STREAM_COLUMNS, list(STREAM_COLUMNS)))
    if options.payload == "json":
        columns = STREAM_COLUMNS | {"value": f"struct<{options.schema}>"}
        return _ddl(_select(options.columns, columns, list(columns)))
    if options.schema is None:
        columns = EVENT_COLUMNS | ARROW_EXTRAS
        return _ddl(_select(options.columns, columns, [*EVENT_COLUMNS, "offset"]))
    return _arrow_schema_of(options)


def _arrow_schema_of(options: ReadOptions) -> str:
    """Pass on the schema that the user gave: only Spark can parse it."""
    names = [name for name in options.columns if name in ARROW_EXTRAS] if options.columns else ["offset"]
    others = [name for name in options.columns if name not in ARROW_EXTRAS]
    if others:
        raise BadOption(
            f"with a schema of its own an Arrow payload has the columns of that schema: leave {', '.join(others)} out "
            f"of `columns`, which can add {', '.join(ARROW_EXTRAS)}"
        )
    return ", ".join([str(options.schema), *(f"`{name}` {ARROW_EXTRAS[name]}" for name in names)])


def _select(names: Sequence[str], known: dict[str, str], default: Sequence[str]) -> dict[str, str]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadOption(f"no column {', '.join(unknown)} (option columns): there are {', '.join(known)}")
    return {name: known[name] for name in names or default}


def _ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_names(options: ReadOptions, names: Sequence[str]) -> None:
    """Check a schema given by .schema(): it may omit columns, but not add any."""
    if options.payload == "arrow" and options.schema is not None:
        return
    known = STREAM_COLUMNS if options.payload != "arrow" else EVENT_COLUMNS | ARROW_EXTRAS
    _select(names, known, [])


def check_filter_fields(options: ReadOptions) -> None:
    """Raise if the filter names a missing field, which would silently match nothing."""
    if options.payload == "arrow":
        known = EVENT_COLUMNS | ARROW_EXTRAS
        prefixes: tuple[str, ...] = ()
        if options.schema is not None:
            return  # only Spark can parse the schema: executors will check
    else:
        known = {name: kind for name, kind in STREAM_COLUMNS.items() if name not in _NOT_COMPARED}
        prefixes = ("header.", "value.") if options.payload == "json" else ("header.",)
    for condition in options.conditions:
        if condition.field not in known and not condition.field.startswith(prefixes):
            known_fields = ", ".join([*known, *(f"{prefix}NAME" for prefix in prefixes)])
            raise BadOption(f"the option filter has no field {condition.field!r}: there are {known_fields}")


# Columns that are not strings, numbers or booleans.
_NOT_COMPARED = ("key", "value", "headers", "timestamp")
