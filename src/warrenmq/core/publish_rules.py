"""Properties that affect the publish of their message, such as CC, delays, report-to, reply-to, expiration and user-id.

Most messages have none of them: `needs_inspection` checks the property flags alone. Compiled when the package is built
(publish_rules.pxd).
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from warrenmq.core.arguments import MAX_DURATION_MS
from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.routing.erlang_text import field_type, is_integer
from warrenmq.protocol import properties
from warrenmq.protocol.properties import delivery_mode
from warrenmq.protocol.values import Timestamp

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel

_HEADERS = 0x2000
_DELIVERY_MODE = 0x1000
_REPLY_TO = 0x0200
_EXPIRATION = 0x0100
_USER_ID = 0x0010

_MAX_BLIND_BYTES = 60_000  # stored with the exchange and the routing key, in at most 65,535 bytes

_INTEGER = re.compile("[+-]?[0-9]+")

DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
ADDRESS_PREFIX = DIRECT_REPLY_TO + "."

DELAY = "x-delay"
DELIVER_AT = "x-deliver-at"
REPORT_TO = "x-report-to"
REPORT = "x-report"
REPORT_ALL = "all"

MESSAGE_UID = "x-message-uid"  # empty: the broker fills in its id of the message
_WANTS_UID = b"\x0dx-message-uidS\0\0\0\0"
_REPORT_TO = REPORT_TO.encode()


def needs_inspection(header: bytes) -> bool:
    """Return True if a property may affect the route of the message, or whether it is accepted."""
    flags = header[12] << 8 | header[13]
    if flags & (_REPLY_TO | _EXPIRATION | _USER_ID):
        return True
    if flags & _DELIVERY_MODE and delivery_mode(header) not in (1, 2):
        return True
    if flags & _HEADERS == 0:
        return False
    # CC, BCC, x-delay, x-deliver-at, x-report-to and x-message-uid are the relevant headers; a search is far cheaper
    # than decoding.
    return b"CC" in header or (b"x-" in header and (b"x-del" in header or b"x-rep" in header or _WANTS_UID in header))


def wants_report(header: bytes) -> bool:
    """Return True if the producer may want a report of the message (report.py)."""
    return bool(header[12] & _HEADERS >> 8) and _REPORT_TO in header


def prepare_header(header: bytes, publisher: "Channel | None") -> tuple[bytes, list[str], dict[str, Any] | None]:
    """Validate the properties. Return the header to store, the keys of CC and BCC, and the decoded headers.

    Without a publisher (the broker itself publishes) user-id and reply-to are left as they are.
    """
    flags = header[12] << 8 | header[13]
    if flags & _DELIVERY_MODE and delivery_mode(header) not in (1, 2):
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{delivery_mode(header)}}}")
    if flags & _USER_ID and publisher is not None:
        _require_own_user(publisher.user, properties.user_id(header))
    if flags & _EXPIRATION:
        _require_valid_expiration(properties.expiration(header))
    if flags & _REPLY_TO and publisher is not None and properties.reply_to(header) == DIRECT_REPLY_TO:
        if publisher.reply_queue is None:
            raise PreconditionFailed("fast reply consumer does not exist")
        header = properties.with_reply_to(header, publisher.reply_queue.name)
    if not flags & _HEADERS:
        return header, [], None
    headers = properties.headers(header)
    extra_keys: list[str] = []
    if headers is not None:
        extra_keys = find_extra_keys(headers)
        if publisher is not None and (REPORT_TO in headers or REPORT in headers):
            _require_valid_report(headers, publisher)
        if "BCC" in headers:
            header = properties.without_header(header, "BCC")
    return header, extra_keys, headers


def ttl_of(header: bytes) -> int:
    """Return the expiration in ms, validated by `prepare_header`; -1 if there is none."""
    if not header[12] & _EXPIRATION >> 8:
        return -1
    return int(properties.expiration(header) or -1)


def encode_blind_keys(headers: "Mapping[str, Any] | None") -> bytes:
    """Return the routing keys of BCC as wire short strings, for `Message.blind_keys`."""
    if headers is None or "BCC" not in headers:
        return b""
    keys = find_extra_keys({"BCC": headers["BCC"]})
    encoded = [key.encode("utf-8", "surrogateescape")[:255] for key in keys]
    return b"".join(bytes((len(key),)) + key for key in encoded)[:_MAX_BLIND_BYTES]


def decode_blind_keys(keys: bytes) -> list[str]:
    """Return what `encode_blind_keys` was given."""
    found = []
    while keys:
        found.append(keys[1 : 1 + keys[0]].decode("utf-8", "surrogateescape"))
        keys = keys[1 + keys[0] :]
    return found


def find_extra_keys(headers: dict[str, Any]) -> list[str]:
    """Return the routing keys in CC and BCC, which must be arrays; items that are not strings are skipped."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name)
        if value is None:
            continue
        if not isinstance(value, list):
            raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{field_type(value)}}}')
        keys.extend(key for key in value if isinstance(key, str))
    return keys


def _require_own_user(user: str, claimed: str | None) -> None:
    if claimed != user:
        raise PreconditionFailed(f"user_id property set to '{claimed}' but authenticated user was '{user}'")


def _require_valid_report(headers: Mapping[str, Any], publisher: "Channel") -> None:
    """406 for invalid headers, 403 unless the publisher may publish to the queue of the reports."""
    if headers.get(REPORT, REPORT_ALL) != REPORT_ALL:
        raise _invalid(REPORT, headers[REPORT], f"'{REPORT_ALL}'")
    target = headers.get(REPORT_TO)
    if target is None:
        return
    if not isinstance(target, str):
        raise _invalid(REPORT_TO, target, "the name of a queue")
    publisher.broker.users.require_publish(publisher.user, publisher.vhost_name, "", target)


def _require_valid_expiration(expiration: str | None) -> None:
    """Require milliseconds as text; a leading sign is allowed."""
    text = expiration or ""
    number = _INTEGER.match(text)
    if number is None:
        fault = "no_integer"
    elif number.end() != len(text):
        fault = f'{{leftover_string,"{text[number.end() :]}"}}'
    elif int(number[0]) < 0:
        fault = f"{{value_negative,{int(number[0])}}}"
    elif int(number[0]) > MAX_DURATION_MS:
        fault = f"{{value_too_large,{int(number[0])}}}"
    else:
        return
    raise PreconditionFailed(f"invalid expiration '{text}': {fault}")


def due_time(headers: Mapping[str, Any], now_ms: int) -> int:
    """Return when a message with these headers is due, in ms since 1970; 0: now. 406 for an invalid header."""
    if DELAY in headers:
        delay_ms = parse_delay(headers[DELAY])
        return now_ms + delay_ms if delay_ms > 0 else 0
    if DELIVER_AT in headers:
        due_ms = _parse_time(headers[DELIVER_AT])
        if due_ms > now_ms + MAX_DURATION_MS:
            raise _invalid(DELIVER_AT, headers[DELIVER_AT], "a time within ten years")
        return due_ms if due_ms > now_ms else 0
    return 0


def parse_delay(value: Any) -> int:
    """Return the milliseconds in an `x-delay` header; 406 if it is invalid."""
    if isinstance(value, str) and value.lstrip("-").isdecimal() and value.isascii():
        value = int(value)
    if not is_integer(value) or value > MAX_DURATION_MS:
        raise _invalid(DELAY, value, "milliseconds, at most ten years")
    number: int = value
    return number


def _parse_time(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise _invalid(DELIVER_AT, value, "a time in ISO 8601") from None
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    if isinstance(value, Timestamp):
        return int(value) * 1000
    if not is_integer(value):
        raise _invalid(DELIVER_AT, value, "a timestamp, milliseconds since 1970, or a time in ISO 8601")
    number: int = value
    return number


def _invalid(name: str, value: Any, expected: str) -> PreconditionFailed:
    shown = f"'{value}'" if isinstance(value, str) or is_integer(value) else field_type(value)
    return PreconditionFailed(f"invalid header '{name}': expected {expected}, got {shown}")
