"""`warren trace ID`: shows what happened to a message; asks a running broker over HTTP.

The biography goes to standard output, drawn or with `--json` as JSON; errors go to standard error. Exit codes: 0 found,
1 not found, 2 the broker could not be reached.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import Any
from urllib.parse import quote

from rich.console import Console

from warrenmq.cli.console import NoPassword, credentials, output_console
from warrenmq.cli.printable import printable
from warrenmq.cli.trace_view import show_biography, show_found
from warrenmq.client.http import BrokerHttp, RequestFailed

FOUND, NOT_FOUND, FAILED = 0, 1, 2
DEFAULT_LIMIT = 50


def trace(message_id: str | None, filters: dict[str, str], url: str, user: str, as_json: bool) -> int:
    """Show one message, or list those that match; return the exit code."""
    console = output_console()
    try:
        broker = BrokerHttp(url, *credentials(user))
        if message_id is not None and filters:
            raise RequestFailed("give a message id or filters, not both")
        if message_id is not None:
            return _show_one(broker, message_id, as_json, console)
        return _find(broker, _in_utc(filters), as_json, console)
    except (RequestFailed, NoPassword) as error:
        print(f"warren: {printable(str(error))}", file=sys.stderr)
        return FAILED


def _show_one(broker: BrokerHttp, message_id: str, as_json: bool, console: Console) -> int:
    try:
        biography = broker.get("/api/traces/" + quote(message_id, safe="", errors="surrogateescape"))
    except RequestFailed as error:
        if error.status != 404:
            raise
        print(f"warren: {printable(str(error))}", file=sys.stderr)
        _explain_how_to_enable(broker, broker.get("/api/trace-rules")["tracing"])
        return NOT_FOUND
    if as_json:
        print(json.dumps(biography, indent=2))
    else:
        show_biography(biography, console)
    return FOUND


def _find(broker: BrokerHttp, filters: dict[str, str], as_json: bool, console: Console) -> int:
    found = _fetch_all(broker, filters)
    if as_json:
        print(json.dumps(found, indent=2))
    elif len(found["traces"]) == 1:
        return _show_one(broker, found["traces"][0]["uid"], as_json, console)
    elif found["traces"]:
        show_found(found, console)
    if not found["traces"]:
        print("warren: no traced message matches", file=sys.stderr)
        _explain_how_to_enable(broker, found["tracing"])
        return NOT_FOUND
    return FOUND


def _fetch_all(broker: BrokerHttp, filters: dict[str, str]) -> dict[str, Any]:
    """Follow the cursors of the broker's pages up to the limit."""
    found: dict[str, Any] = broker.get("/api/traces", filters)
    limit = int(filters.get("limit", DEFAULT_LIMIT))
    while found["next"] is not None and len(found["traces"]) < limit:
        rest = {"limit": str(limit - len(found["traces"])), "cursor": found["next"]}
        further = broker.get("/api/traces", filters | rest)
        found["traces"] += further["traces"]
        found["next"] = further["next"]
    return found


def _explain_how_to_enable(broker: BrokerHttp, tracing: dict[str, Any]) -> None:
    if tracing.get("failure"):
        print(f"The event log has failed: {printable(tracing['failure'])}", file=sys.stderr)
    elif not tracing.get("enabled", True):
        lines = (
            "Tracing is off. Enable it for all messages, or a share of them, when you start the broker:",
            "    warren serve --trace all",
            "    warren serve --trace 0.01",
            f"or now, with a rule (on the page {broker.url}/ui/trace_rules.html, or with curl):",
            f"    curl -u {broker.user} -X PUT {broker.url}/api/trace-rules/everything \\",
            "        -H 'Content-Type: application/json' -d '{\"ratio\": 1}'",
        )
        print("\n".join(lines), file=sys.stderr)


def _in_utc(filters: dict[str, str]) -> dict[str, str]:
    """Add the local time zone to times without one; the broker parses `15m` and the like."""
    return {name: _moment(text) if name in ("from", "to") else text for name, text in filters.items()}


def _moment(text: str) -> str:
    if re.fullmatch(r"\s*[0-9]+\s*[smhdw]\s*", text):
        return text
    try:
        return datetime.fromisoformat(text.strip()).astimezone().isoformat()
    except (ValueError, OverflowError):
        return text  # the broker reports what it accepts
