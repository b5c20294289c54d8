"""Log formats: text, or one JSON object per line.

Names of users, queues and exchanges reach the log as clients sent them. Control characters, such as line breaks and
terminal escapes, are escaped here and nowhere before; only tracebacks keep their own line breaks.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from warrenmq.cli.printable import printable

ExceptionInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

FORMATS = ("text", "json")


def formatter(name: str) -> logging.Formatter:
    """Return the formatter of this name, one of FORMATS."""
    return JsonFormatter() if name == "json" else TextFormatter()


class TextFormatter(logging.Formatter):
    """`2026-11-17 20:02:24,123 WARNING warrenmq.session: ...`, each record on one line, except tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - logging's name
        """Format the traceback; the text of each exception is one line."""
        if ei[1] is None:
            return ""
        parts = traceback.TracebackException.from_exception(ei[1]).format()
        return "\n".join(line for part in parts for line in _lines(part))


class JsonFormatter(logging.Formatter):
    """time (ISO 8601, UTC), level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values["time"] = values["time"].replace("+00:00", "Z")
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps(values)  # ASCII, without line breaks


def _lines(part: str) -> list[str]:
    """Split a part of a traceback: a frame has several lines, the text of an exception one."""
    part = part.removesuffix("\n")
    lines = part.split("\n") if part.startswith(('  File "', "\n")) else [part]
    return [printable(line) for line in lines]
