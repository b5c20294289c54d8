"""Prints a message in a terminal: where it came from, properties, headers, body. Text of clients is made printable."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from rich.console import Console
from rich.text import Text

from warrenmq.cli.printable import printable
from warrenmq.cli.trace_view import duration, local, microseconds

BYTES_PER_LINE = 16
SECOND = 1_000_000


def show_message(title: str, message: dict[str, Any], form: str, console: Console) -> None:
    """Print one message of the broker's API.

    `form` of the body: text, json, hex or auto: JSON if it is that, else text, or hex if it is not UTF-8.
    """
    text = Text(printable(title), style="bold")
    for line in (_route(message), *_life(message)):
        text.append("\n" + printable(line), style="default not bold")
    properties = dict(message["properties"])
    headers = properties.pop("headers", {})
    for name, values in (("properties", properties), ("headers", headers)):
        for at, (key, value) in enumerate(values.items()):
            text.append(f"\n{name if at == 0 else '':<11}", style="dim not bold")
            text.append(f"{printable(key)}: {_shown(value)}", style="default not bold")
    console.print(text)
    console.print(Text(body_text(message, form)))
    console.print()


def _route(message: dict[str, Any]) -> str:
    key = message["routing_key"] or "(empty)"
    size = message["payload_bytes"]
    return f"exchange {message['exchange'] or '(default)'}, key {key}, {size:,} byte{'' if size == 1 else 's'}"


def _life(message: dict[str, Any]) -> list[str]:
    """Return its age, what happened to it, and what will, as one line or none."""
    now = time.time_ns() // 1000
    parts = []
    published = _published(message)
    if published is not None:
        parts.append(f"{duration(max(0, now - published))} old")
    if message.get("redelivered"):
        parts.append("redelivered")
    if message.get("delivery_attempts"):
        parts.append(f"delivery attempts: {message['delivery_attempts']}")
    for name, verb in (("expires", "expires"), ("deliver_at", "will be delivered"), ("next_attempt", "next attempt")):
        if message.get(name):
            left = microseconds(message[name]) - now
            parts.append(f"{verb} {'now' if left <= 0 else 'in ' + duration(left)} ({local(message[name])[:-7]})")
    return [", ".join(parts)] if parts else []


def _published(message: dict[str, Any]) -> int | None:
    """Return when it was published in us, if tracing has recorded it, or by the publisher's own timestamp."""
    if message.get("published"):
        return microseconds(message["published"])
    timestamp = message["properties"].get("timestamp")
    return None if timestamp is None else int(timestamp) * SECOND


def _shown(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def body_text(message: dict[str, Any], form: str) -> str:
    """Return the body in this form, and how much of it is missing."""
    payload, size = message["payload"], message["payload_bytes"]
    is_text = message["payload_encoding"] == "string"
    body = payload.encode("utf-8", "surrogateescape") if is_text else base64.b64decode(payload)
    shown = None
    if form != "hex" and is_text:
        shown = _pretty(payload) if form in ("auto", "json") and len(body) == size else None
        is_binary = form == "auto" and "\0" in payload
        shown = shown or (None if is_binary else payload)
    elif form == "text":
        shown = body.decode("utf-8", "backslashreplace")
    lines = _hex(body) if shown is None else [printable(line.expandtabs(4)) for line in shown.split("\n")]
    left = size - len(body)
    return "\n".join([*lines, f"… {left:,} more bytes: raise --truncate"] if left else lines)


def _pretty(payload: str) -> str | None:
    """Return JSON with indentation; None if it is not a JSON object or array."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict | list) else None


def _hex(body: bytes) -> list[str]:
    lines = []
    for at in range(0, len(body), BYTES_PER_LINE):
        some = body[at : at + BYTES_PER_LINE]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{at:08x}  {some.hex(' '):<{3 * BYTES_PER_LINE}} {signs}")
    return lines
