"""Stream filters: deliver only messages with certain values in the header `x-stream-filter-value`.

RabbitMQ filters whole chunks by a Bloom filter and leaves the rest to the client. WarrenMQ checks each message, so a
consumer gets exactly what it asked for. With `needles` a store can skip pages without decoding them.

Compiled when the package is built (stream_filter.pxd).
"""

from typing import Any

from warrenmq.core.routing.erlang_text import field_type
from warrenmq.protocol.properties import text_header
from warrenmq.protocol.values import LongString

FILTER = "x-stream-filter"
MATCH_UNFILTERED = "x-stream-match-unfiltered"
VALUE_HEADER = "x-stream-filter-value"

_name = VALUE_HEADER.encode()
_KEY = bytes((len(_name),)) + _name  # as it is in a headers table

# With more values than this a page is searched for the header alone.
MAX_NEEDLES = 16


class StreamFilter:
    """Accepts messages with one of these values, and those without a value if `matches_unfiltered`.

    Every accepted message contains one of `needles`, as bytes; None: unknown.
    """

    __slots__ = ("_matches_unfiltered", "_values", "needles")

    def __init__(self, values: frozenset[bytes], matches_unfiltered: bool) -> None:
        self._values = values
        self._matches_unfiltered = matches_unfiltered
        self.needles: tuple[bytes, ...] | None = None
        if not matches_unfiltered:
            few = len(values) <= MAX_NEEDLES
            self.needles = tuple(_KEY + _string(value) for value in sorted(values)) if few else (_KEY + b"S",)

    def accepts(self, header: bytes) -> bool:
        """Return True if the message with this header is to be delivered."""
        if _KEY not in header:
            return self._matches_unfiltered
        value = text_header(header, _KEY)
        return self._matches_unfiltered if value is None else value in self._values


def make_filter(arguments: dict[str, Any]) -> StreamFilter | None:
    """The filter that a consumer asks for with these arguments, which `find_fault` has passed; None: none."""
    if FILTER not in arguments:
        return None
    asked = arguments[FILTER]
    values = frozenset(map(_encode, asked if isinstance(asked, list) else [asked]))
    return StreamFilter(values, arguments.get(MATCH_UNFILTERED) is True)


def find_fault(arguments: dict[str, Any]) -> tuple[str, str] | None:
    """Return the invalid argument and its fault, as RabbitMQ words others; None if the filter is valid."""
    asked = arguments.get(FILTER, "")
    for value in asked if isinstance(asked, list) else [asked]:
        if not isinstance(value, (str, LongString)):
            return FILTER, f"{{unacceptable_type,{field_type(value)}}}"
    matches_unfiltered = arguments.get(MATCH_UNFILTERED, False)
    if not isinstance(matches_unfiltered, bool):
        return MATCH_UNFILTERED, f"{{unacceptable_type,{field_type(matches_unfiltered)}}}"
    return None


def _encode(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _string(value: bytes) -> bytes:
    """Encode a string as a value of a field table."""
    return b"S" + len(value).to_bytes(4, "big") + value
