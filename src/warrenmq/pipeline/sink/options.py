"""The options of a write and the columns it takes, validated once on the driver. Pickled to executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.pipeline.errors import BadOption
from warrenmq.pipeline.source.access import ACCESS_OPTIONS, BrokerAccess
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
# Added by Spark to the options of a streaming write.
SPARK_OPTIONS = ("checkpointlocation", "queryname")

# Columns that become properties of the message; all others belong to the body.
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
# Columns of the source that are ignored, so that a DataFrame can be written as it was read.
ORIGIN_COLUMNS = ("stream", "partition", "offset", "redelivered")

DECLARES = ("stream", "queue")
# Ids that a declared queue remembers; without this it only remembers those of waiting messages.
QUEUE_WINDOW = 100_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Validated options. `exchange` None: the column of that name, else the default exchange."""

    access: BrokerAccess
    exchange: str | None = None
    routing_key: str | None = None
    is_mandatory: bool = True
    declare: str | None = None
    deduplication_window: int | None = None
    writer_name: str | None = None
    batch_id: int | None = None
    id_columns: tuple[str, ...] = ()
    has_value: bool = False  # otherwise all columns are written as JSON

    def declared_arguments(self) -> dict[str, object]:
        """Return the arguments of the stream or queue to declare."""
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
    """Parse the options of a write of these columns; raise BadOption with what to do."""
    if overwrite and not is_streaming:  # in streaming: output mode "complete"
        raise BadOption('messages can only be appended: write with mode("append")')
    own = {name: value for name, value in given.items() if name.lower() not in SPARK_OPTIONS}
    options = known_options(own, OPTIONS)
    if is_streaming and "batchid" in options:
        raise BadOption("leave out the option batchId: a streaming query numbers its batches itself")
    if "batchid" in options and "writername" not in options:
        raise BadOption("the option batchId needs writerName: together they identify a batch that was written before")
    names = schema.fieldNames()
    write = WriteOptions(
        access=BrokerAccess.of(options),
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
        raise BadOption("give a routing key: the option routingKey, or a column `routing_key`")
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
                f"beside `value` there can be no column {', '.join(unknown)}: select {', '.join(known)}, "
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
        raise BadOption(f"the column `{name}` is {kinds[name]}; it must be {' or '.join(allowed)}")
