"""Effective options: what the type, durability and arguments of a queue or exchange mean.

The one place that interprets arguments, which `arguments.py` has checked. Everybody else, storage included, takes the
options. `Queue.apply` and `Exchange.apply` change them at run time; the type, durability and deduplication of what
exists stay as declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warrenmq.core import deduplication
from warrenmq.core.arguments import parse_age, queue_type_of
from warrenmq.core.deduplication import Settings
from warrenmq.core.durability import Durability, parse_durability

CLASSIC = "classic"
STREAM = "stream"


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """None: not set. `type` is classic, quorum or stream; the last three are of streams."""

    type: str = CLASSIC
    is_durable: bool = False
    durability: Durability | None = None  # how safe a confirmed message is; None: as the broker's
    deduplication: Settings | None = None
    max_length_bytes: int | None = None
    max_age_ms: int | None = None
    segment_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """None: not set. `alternate` names the exchange that takes what finds no queue."""

    alternate: str | None = None
    deduplication: Settings | None = None


def queue_options(is_durable: bool, arguments: Mapping[str, Any]) -> QueueOptions:
    """Return the options of a queue that is declared like this."""
    type = queue_type_of(arguments)
    durability = arguments.get("x-durability")
    is_stream = type == STREAM
    age = arguments.get("x-max-age") if is_stream else None
    return QueueOptions(
        type=type,
        is_durable=is_durable,
        durability=parse_durability(durability) if isinstance(durability, str) else None,
        deduplication=_deduplication(arguments, forgets_with_message=not is_stream),
        max_length_bytes=arguments.get("x-max-length-bytes") if is_stream else None,
        max_age_ms=None if age is None else parse_age(age),
        segment_bytes=arguments.get("x-stream-max-segment-size-bytes") if is_stream else None,
    )


def exchange_options(type: str, arguments: Mapping[str, Any]) -> ExchangeOptions:
    """Return the options of an exchange that is declared like this."""
    alternate = alternate_of(arguments)
    if type == deduplication.EXCHANGE_TYPE:  # made for it: need not ask
        arguments = {**arguments, deduplication.ENABLED: True}
    return ExchangeOptions(alternate, _deduplication(arguments))


def alternate_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the alternate exchange, also of arguments that were not checked."""
    alternate = arguments.get("alternate-exchange")
    return alternate if isinstance(alternate, str) else None


def _deduplication(arguments: Mapping[str, Any], forgets_with_message: bool = False) -> Settings | None:
    """`forgets_with_message`: without a size and a time, an id counts while its message is in the queue."""
    if arguments.get(deduplication.ENABLED) is not True:
        return None
    has_window = deduplication.SIZE in arguments or deduplication.TTL in arguments or not forgets_with_message
    return Settings(
        str(arguments.get(deduplication.HEADER, deduplication.HEADER)),
        int(arguments.get(deduplication.SIZE, deduplication.DEFAULT_SIZE)) if has_window else 0,
        int(arguments.get(deduplication.TTL, 0)),
        arguments.get(deduplication.PERSISTENCE, "disk") == "disk",
    )
