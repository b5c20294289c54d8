"""Places in a stream, as users name them: earliest, latest, an offset, or a time; one for all streams or one for each.

Pure values. What a place means in offsets only the broker can say (broker.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from warrenmq.pipeline.errors import BadOption

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, in milliseconds since 1970 UTC."""

    ms: int


Place: TypeAlias = str | int | Moment


@dataclass(frozen=True, slots=True)
class Places:
    """Where to begin or to end: for the streams that are named, and for all others."""

    default: Place
    by_stream: Mapping[str, Place] = field(default_factory=dict)

    def of(self, stream: str) -> Place:
        return self.by_stream.get(stream, self.default)

    @property
    def is_fixed(self) -> bool:
        """Whether it means the same whenever it is asked."""
        return all(isinstance(place, int) or place == EARLIEST for place in (self.default, *self.by_stream.values()))


def parse_places(name: str, text: str) -> Places:
    """earliest, latest, JSON {"stream": offset | "earliest" | "latest" | time}, or a time."""
    text = text.strip()
    if not text.startswith("{"):
        return Places(_parse_place(name, text))
    try:
        table = json.loads(text)
    except ValueError as error:
        raise BadOption(f"the option {name} begins like JSON, but is none: {error}") from None
    places = {stream: _parse_json_place(name, stream, value) for stream, value in table.items()}
    # Streams that the table does not name: as if nothing had been said of them.
    return Places(EARLIEST if name.startswith("starting") else LATEST, places)


def parse_time(name: str, text: str) -> Moment:
    """ISO 8601 (UTC where it names no zone), or milliseconds since 1970."""
    text = text.strip()
    if text.isdecimal():
        return Moment(int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"the option {name} is a time like 2026-11-16T10:00:00Z or in milliseconds since 1970, not {text!r}"
        ) from None
    return Moment(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


def _parse_place(name: str, text: str) -> Place:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return parse_time(name, text)
    except BadOption:
        raise BadOption(
            f'the option {name} is earliest, latest, a time, or JSON like {{"orders": 120}}, not {text!r}'
        ) from None


def _parse_json_place(name: str, stream: str, value: object) -> Place:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        return _parse_place(name, value)
    raise BadOption(f"the option {name} gives {stream!r} a place that is no offset and no word: {value!r}")
