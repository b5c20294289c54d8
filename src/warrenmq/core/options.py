"""Effective options of queues and exchanges, from their type, durability, arguments and policies.

The only place that interprets arguments, after `arguments.py` has validated them and policies have changed them
(policies.py); those declared with an older version may be unvalidated. All other code, storage included, uses the
options. `Queue.apply` and `Exchange.apply` change them at run time, except for type, durability, deduplication, and
what is specific to an exchange type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warrenmq.core import deduplication
from warrenmq.core.arguments import DELAYED_TYPE, parse_age, queue_type_of
from warrenmq.core.deduplication import DeduplicationOptions
from warrenmq.core.durability import Durability, parse_durability
from warrenmq.core.history import DEFAULT_LENGTH, LENGTH_ARGUMENT
from warrenmq.core.retry_options import RetryOptions, retry_options
from warrenmq.core.routing import CONSISTENT_HASH, DELAYED_MESSAGE, RECENT_HISTORY
from warrenmq.core.routing.consistent_hash import HEADER_ARGUMENT, PROPERTY_ARGUMENT
from warrenmq.core.routing.erlang_text import is_integer

CLASSIC = "classic"
QUORUM = "quorum"
STREAM = "stream"

DROP_HEAD = "drop-head"
REJECT_PUBLISH = "reject-publish"
REJECT_PUBLISH_DLX = "reject-publish-dlx"

# Of quorum queues, as in RabbitMQ 4.
DEFAULT_DELIVERY_LIMIT = 20


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """None: not set. `type` is classic, quorum or stream; the last two are of streams alone."""

    type: str = CLASSIC
    is_durable: bool = False
    durability: Durability | None = None  # of confirmed messages; None: the broker's
    deduplication: DeduplicationOptions | None = None
    message_ttl_ms: int | None = None
    unused_ms: int | None = None  # x-expires: delete the queue when it is unused for this long
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None  # None: the message keeps its routing keys
    is_dead_letter_at_least_once: bool = False  # hold dead letters that no queue takes
    max_priority: int = 0  # 0: no priorities
    is_single_active: bool = False
    delivery_limit: int | None = None
    retry: RetryOptions | None = None
    consumer_timeout_ms: int | None = None
    max_age_ms: int | None = None
    segment_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """None: not set. `alternate` names the exchange for messages that match no binding.

    `routing_type` is the exchange type; of an x-delayed-message exchange, its `x-delayed-type`.
    """

    alternate: str | None = None
    deduplication: DeduplicationOptions | None = None
    hash_header: str | None = None  # x-consistent-hash: the header or the property that is hashed
    hash_property: str | None = None
    history_length: int = 0  # x-recent-history: the number of messages
    routing_type: str = "direct"


_PLAIN = {is_durable: QueueOptions(is_durable=is_durable) for is_durable in (False, True)}  # of most queues


def queue_options(is_durable: bool, arguments: Mapping[str, Any]) -> QueueOptions:
    """Return the options of a queue with these arguments."""
    if not arguments:
        return _PLAIN[is_durable]
    type = queue_type_of(arguments)
    retry = None if type == STREAM else retry_options(arguments, _integer(arguments, "x-delivery-limit"))
    durability = arguments.get("x-durability")
    is_stream = type == STREAM
    age = arguments.get("x-max-age") if is_stream else None
    return QueueOptions(
        type=type,
        is_durable=is_durable,
        durability=parse_durability(durability) if isinstance(durability, str) else None,
        deduplication=_deduplication(arguments, forgets_with_message=not is_stream),
        message_ttl_ms=arguments.get("x-message-ttl"),
        unused_ms=arguments.get("x-expires"),
        max_length=arguments.get("x-max-length"),
        max_length_bytes=arguments.get("x-max-length-bytes"),
        overflow=_overflow(type, arguments),
        dead_letter_exchange=arguments.get("x-dead-letter-exchange"),
        dead_letter_routing_key=arguments.get("x-dead-letter-routing-key"),
        is_dead_letter_at_least_once=_is_dead_letter_kept(type, arguments),
        max_priority=arguments.get("x-max-priority", 0),
        is_single_active=arguments.get("x-single-active-consumer") is True,
        delivery_limit=_delivery_limit(type, arguments) if retry is None else None,
        retry=retry,
        consumer_timeout_ms=_integer(arguments, "x-consumer-timeout"),
        max_age_ms=None if age is None else parse_age(age),
        segment_bytes=arguments.get("x-stream-max-segment-size-bytes") if is_stream else None,
    )


def _overflow(type: str, arguments: Mapping[str, Any]) -> str:
    overflow: str = arguments.get("x-overflow", DROP_HEAD)
    return DROP_HEAD if type == QUORUM and overflow == REJECT_PUBLISH_DLX else overflow  # RabbitMQ does the same


def _is_dead_letter_kept(type: str, arguments: Mapping[str, Any]) -> bool:
    """At-least-once works on quorum queues that reject publishes; RabbitMQ falls back to at-most-once otherwise."""
    return (
        type == QUORUM
        and arguments.get("x-dead-letter-strategy") == "at-least-once"
        and arguments.get("x-overflow") == REJECT_PUBLISH
        and arguments.get("x-dead-letter-exchange") is not None
    )


def _delivery_limit(type: str, arguments: Mapping[str, Any]) -> int | None:
    if type != QUORUM:
        return None
    limit = _integer(arguments, "x-delivery-limit")
    if limit is None:
        return DEFAULT_DELIVERY_LIMIT
    return None if limit < 0 else limit


def _integer(arguments: Mapping[str, Any], name: str) -> int | None:
    """Return an integer argument; None also if an older version accepted another type."""
    value = arguments.get(name)
    return value if is_integer(value) else None


def exchange_options(type: str, arguments: Mapping[str, Any]) -> ExchangeOptions:
    """Return the options of an exchange with these arguments."""
    alternate = alternate_of(arguments)
    if type == DELAYED_MESSAGE:
        type = arguments[DELAYED_TYPE]
    if type == deduplication.EXCHANGE_TYPE:  # implied by the type
        arguments = {**arguments, deduplication.ENABLED: True}
    is_hashing = type == CONSISTENT_HASH
    return ExchangeOptions(
        alternate,
        _deduplication(arguments),
        arguments.get(HEADER_ARGUMENT) if is_hashing else None,
        arguments.get(PROPERTY_ARGUMENT) if is_hashing else None,
        arguments.get(LENGTH_ARGUMENT, DEFAULT_LENGTH) if type == RECENT_HISTORY else 0,
        type,
    )


def alternate_of(arguments: Mapping[str, Any]) -> str | None:
    """Return the alternate exchange; the arguments may be unvalidated."""
    alternate = arguments.get("alternate-exchange")
    return alternate if isinstance(alternate, str) else None


def _deduplication(arguments: Mapping[str, Any], forgets_with_message: bool = False) -> DeduplicationOptions | None:
    """`forgets_with_message`: without a size and a time, an id counts while its message is in the queue."""
    if arguments.get(deduplication.ENABLED) is not True:
        return None
    has_window = deduplication.SIZE in arguments or deduplication.TTL in arguments or not forgets_with_message
    return DeduplicationOptions(
        str(arguments.get(deduplication.HEADER, deduplication.HEADER)),
        int(arguments.get(deduplication.SIZE, deduplication.DEFAULT_SIZE)) if has_window else 0,
        int(arguments.get(deduplication.TTL, 0)),
        arguments.get(deduplication.PERSISTENCE, "disk") == "disk",
    )
