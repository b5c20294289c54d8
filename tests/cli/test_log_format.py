"""Nothing that a client sends can forge a line of the log, or steer the terminal that shows it."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from warrenmq.cli.log_format import JsonFormatter, TextFormatter

HOSTILE = "a\n2026-01-01 00:00:00,000 INFO forged: line\r\x1b[31m\x9b2J\x7f\u2028\u2029\u202e\ud800\x00"


def record(message: str, *values: object, is_error: bool = False) -> logging.LogRecord:
    exc_info = sys.exc_info() if is_error else None
    return logging.LogRecord("warrenmq.test", logging.WARNING, __file__, 1, message, values, exc_info)


def failing() -> logging.LogRecord:
    try:
        try:
            raise KeyError(HOSTILE)
        except KeyError as cause:
            raise ValueError(HOSTILE) from cause
    except ValueError:
        return record("it failed: %s", HOSTILE, is_error=True)


def is_plain(line: str) -> bool:
    return line.isprintable()


def test_a_hostile_name_stays_on_its_line() -> None:
    line = TextFormatter().format(record("user '%s' refused", HOSTILE))
    assert is_plain(line)
    assert (
        r"user 'a\n2026-01-01 00:00:00,000 INFO forged: line\r\x1b[31m\x9b2J\x7f\u2028\u2029\u202e\ud800\x00'" in line
    )


def test_names_in_other_scripts_stay_readable() -> None:
    assert "Grüße 兎 кролик" in TextFormatter().format(record("queue '%s'", "Grüße 兎 кролик"))


def test_a_traceback_keeps_its_own_line_breaks_and_no_others() -> None:
    lines = TextFormatter().format(failing()).split("\n")
    assert all(is_plain(line) for line in lines)
    assert sum(line.startswith("Traceback (most recent call last):") for line in lines) == 2
    assert sum(line.startswith("ValueError: a\\n2026") for line in lines) == 1
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert "    raise KeyError(HOSTILE)" in lines


@pytest.mark.parametrize("made", [lambda: record("user '%s' refused", HOSTILE), failing])
def test_json_is_one_object_on_one_line(made: object) -> None:
    entry = made()  # type: ignore[operator]
    line = JsonFormatter().format(entry)
    assert line.isascii()
    assert "\n" not in line
    values = json.loads(line)
    assert values["message"] == entry.getMessage()
    assert (values["level"], values["logger"]) == ("warning", "warrenmq.test")
    assert values["time"].endswith("Z")
    assert ("exception" in values) == bool(entry.exc_info)


def test_json_contains_microseconds_in_utc() -> None:
    entry = record("x")
    entry.created = 0.000001
    assert json.loads(JsonFormatter().format(entry))["time"] == "1970-01-01T00:00:00.000001Z"
