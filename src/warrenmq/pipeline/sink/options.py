"""The options of a write, checked once on the driver, together with the columns that are to be written.

Pickled to the executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.pipeline.errors import BadOption
from warrenmq.pipeline.source.access import ACCESS_OPTIONS, Access
from warrenmq.pipeline.source.options import flag, known_options, positive

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = (
    *ACCESS_OPTIONS,
    "exchange",
    "routingKey",
    "mandatory",
    "declare",
    "deduplicationWindow",
    "writerName",
    "batchId",
    "idColumns",
)
# What Spark itself adds to the options of a streaming write.
SPARKS_OWN = ("checkpointlocation", "queryname")

# Columns that say something of the message; what else there is belongs to the body.
PROPERTY_COLUMNS = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
KEY_COLUMNS = ("routing_key", "key")
# A DataFrame that came from the source may be written as it is: these are where it came from.
ORIGIN_COLUMNS = ("stream", "partition", "offset", "redelivered")

DECLARES = ("stream", "queue")
# Ids that a queue remembers that is declared here; without it a queue remembers those of waiting messages only.
QUEUE_WINDOW = 100_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for. `exchange` None: by the column of that name, else the default exchange."""

    access: Access
    exchange: str | None = None
    routing_key: str | None = None
    is_mandatory: bool = True
    declare: str | None = None
    deduplication_window: int | None = None
    writer_name: str | None = None
    batch_id: int | None = None
    id_columns: tuple[str, ...] = ()
    has_value: bool = False  # else the columns are written as JSON

    def declared_arguments(self) -> dict[str, object]:
        """Of the stream or queue that is declared."""
        arguments: dict[str, object] = {"x-message-deduplication": True}
        if self.declare == "stream":
            arguments["x-queue-type"] = "stream"
        window = self.deduplication_window or (QUEUE_WINDOW if self.declare == "queue" else None)
        if window is not None:
            arguments["x-cache-size"] = window
        return arguments


def parse_write_options(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, is_streaming: bool
) -> WriteOptions:
    """The options of a write of these columns; raises BadOption with what to do."""
    if overwrite and not is_streaming:  # in streaming it is the output mode "complete": all of a result, batch by batch
        raise BadOption('messages can only be added: write with mode("append")')
    mine = {name: value for name, value in given.items() if name.lower() not in SPARKS_OWN}
    options = known_options(mine, OPTIONS)
    if is_streaming and "batchid" in options:
        raise BadOption("leave out the option batchId: a streaming query numbers its batches itself")
    if "batchid" in options and "writername" not in options:
        raise BadOption("the option batchId needs writerName: together they say that a batch was written before")
    names = schema.fieldNames()
    write = WriteOptions(
        access=Access.of(options),
        exchange=options.get("exchange"),
        routing_key=options.get("routingkey"),
        is_mandatory=flag(options, "mandatory", True),
        declare=_declare(options),
        deduplication_window=positive(options, "deduplicationWindow"),
        writer_name=options.get("writername") or None,
        batch_id=_batch_id(options.get("batchid")),
        id_columns=tuple(name.strip() for name in options.get("idcolumns", "").split(",") if name.strip()),
        has_value="value" in names,
    )
    _check_columns(write, schema)
    if write.routing_key is None and not set(KEY_COLUMNS) & set(names):
        raise BadOption("say where to: the option routingKey, or a column `routing_key`")
    return write


def _declare(options: Mapping[str, str]) -> str | None:
    declare = options.get("declare")
    if declare is None:
        if "deduplicationwindow" in options:
            raise BadOption("the option deduplicationWindow is for `declare`")
        return None
    if declare not in DECLARES:
        raise BadOption(f"the option declare is one of {', '.join(DECLARES)}, not {declare!r}")
    if options.get("exchange") or not options.get("routingkey"):
        raise BadOption("the option declare needs routingKey, the name of what is declared, and no exchange")
    return declare


def _batch_id(text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise BadOption(f"the option batchId is the number that foreachBatch was given, not {text!r}")
    return None if text is None else int(text)


def _check_columns(write: WriteOptions, schema: StructType) -> None:
    kinds = {field.name: field.dataType.typeName() for field in schema}
    if write.has_value:
        known = ("value", "exchange", "headers", *KEY_COLUMNS, *PROPERTY_COLUMNS, *ORIGIN_COLUMNS)
        unknown = [name for name in kinds if name not in known]
        if unknown:
            raise BadOption(
                f"beside `value` there is no place for the column {', '.join(unknown)}: select {', '.join(known)}, "
                "or leave `value` out, and all columns are written as JSON"
            )
        _require(kinds, "value", ("binary", "string"))
        for name in PROPERTY_COLUMNS:
            _require(kinds, name, _PROPERTY_TYPES.get(name, ("string",)))
        _require(kinds, "exchange", ("string",))
    for name in KEY_COLUMNS:
        if write.has_value or name == "routing_key":
            _require(kinds, name, ("string", "binary"))
    _require(kinds, "headers", ("array", "map"))
    missing = [name for name in write.id_columns if name not in kinds]
    if missing:
        raise BadOption(f"the option idColumns names {', '.join(missing)}, which is no column: {', '.join(kinds)}")


_NUMBER = ("byte", "short", "integer", "long")
_PROPERTY_TYPES = {"delivery_mode": _NUMBER, "priority": _NUMBER, "timestamp": ("timestamp",)}


def _require(kinds: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> None:
    if name in kinds and kinds[name] not in allowed:
        raise BadOption(f"the column `{name}` is {kinds[name]}; it has to be {' or '.join(allowed)}")
