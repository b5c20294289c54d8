"""Field values as RabbitMQ prints them in its error texts, which clients and tests compare.

RabbitMQ's texts show Erlang terms: `<<"foo">>` for a string, `undefined` for void, `{signedint,1}` inside an array.
Long terms stay on one line here, where Erlang would break them.
"""

from datetime import datetime
from decimal import Decimal

from warrenmq.protocol.values import Timestamp

MAX_JSON_TERM = 500

_ESCAPES = {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0B: "\\v",
    0x0C: "\\f",
    0x0D: "\\r",
    0x1B: "\\e",
    0x22: '\\"',
    0x5C: "\\\\",
}


def field_type(value: object) -> str:
    """Return the name of the value's field type; for an integer, the narrowest type that holds it."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, datetime):
        return "timestamp"
    return "table" if isinstance(value, dict) else "array"


def is_integer(value: object) -> bool:
    """Return True for an integer of any width; not for a timestamp, though it may be an int here."""
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def term(value: object) -> str:
    """Return the value as an Erlang term."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _binary(value.encode())
    if isinstance(value, bytes):
        return _binary(value)
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        scale = -exponent if isinstance(exponent, int) else 0
        return f"{{{scale},{value.scaleb(scale):f}}}"
    if isinstance(value, datetime):
        return str(int(value.timestamp()))
    if isinstance(value, dict):
        return "[" + ",".join(f"{{{term(k)},{field_type(v)},{term(v)}}}" for k, v in value.items()) + "]"
    if isinstance(value, list):
        return "[" + ",".join(f"{{{field_type(item)},{term(item)}}}" for item in value) + "]"
    return str(value)


def json_term(value: object) -> str:
    """Return a JSON value as an Erlang term, truncated if it is long."""
    shown = _json_term(value)
    return shown if len(shown) <= MAX_JSON_TERM else shown[:MAX_JSON_TERM] + "..."


def _json_term(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return _binary(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return "#{" + ",".join(f"{_json_term(key)} => {_json_term(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_json_term, value)) + "]"
    return term(value)


def _float(value: float) -> str:
    """Erlang writes a digit on each side of the point, and no sign or zero that the exponent does not need."""
    mantissa, mark, exponent = repr(value).partition("e")
    if not mark:
        return mantissa
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"


def _binary(data: bytes) -> str:
    """Quoted if every byte is printable Latin-1, as numbers if not."""
    if not data:
        return "<<>>"
    if all(_is_printable(byte) for byte in data):
        # The bytes themselves go out, so that UTF-8 made of printable bytes arrives as it was.
        quoted = b"".join(_ESCAPES[byte].encode() if byte in _ESCAPES else bytes((byte,)) for byte in data)
        return f'<<"{quoted.decode(errors="replace")}">>'
    return f"<<{','.join(map(str, data))}>>"


def _is_printable(byte: int) -> bool:
    return 0x20 <= byte <= 0x7E or byte >= 0xA0 or byte in _ESCAPES
