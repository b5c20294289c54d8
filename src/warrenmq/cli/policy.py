"""`warren policy set`, `list` and `clear`: policies of a running broker, over its HTTP API.

Standard output has the result, as a table or with `--json`; errors go to standard error. Exit codes: 0 done, 1 refused
by the broker, 2 the request failed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from warrenmq.cli.console import output_console
from warrenmq.cli.printable import printable, shortened
from warrenmq.cli.request import no_vhost, not_found_as, path_of, run
from warrenmq.client.http import BrokerHttp, RequestFailed
from warrenmq.core.policy_keys import KEYS

MAX_NAME_WIDTH = 20


def set_policy(
    name: str,
    pattern: str,
    definition: str,
    vhost: str,
    priority: int,
    apply_to: str,
    is_operator: bool,
    url: str,
    user: str,
) -> int:
    """Set a policy; return the exit code."""

    def request(broker: BrokerHttp) -> None:
        settings = _parsed(definition)
        body = {"pattern": pattern, "definition": settings, "priority": priority, "apply-to": apply_to}
        with not_found_as(no_vhost(vhost)):
            is_new = broker.put(_path(is_operator, vhost, name), body)
        print(f"{_kind(is_operator)} {printable(name)} {'set' if is_new else 'replaced'}")
        ignored = sorted(key for key in settings if key in KEYS and not KEYS[key].has_effect)
        if ignored:
            print(f"warren: keys without effect on a single node: {', '.join(ignored)}", file=sys.stderr)

    return run(request, url, user)


def clear_policy(name: str, vhost: str, is_operator: bool, url: str, user: str) -> int:
    def request(broker: BrokerHttp) -> None:
        option = " --operator" if is_operator else ""
        missing = f"no {_kind(is_operator)} '{name}' in vhost '{vhost}': see `warren policy list{option}`"
        with not_found_as(missing):
            broker.delete(_path(is_operator, vhost, name))
        print(f"{_kind(is_operator)} {printable(name)} cleared")

    return run(request, url, user)


def list_policies(vhost: str | None, is_operator: bool, url: str, user: str, as_json: bool) -> int:
    def request(broker: BrokerHttp) -> None:
        with not_found_as(no_vhost(vhost)):
            found = broker.get(_path(is_operator, vhost))
        if as_json:
            print(json.dumps(found, indent=2))
        elif not found:
            print(f"no {_kind(is_operator, 'policies')}")
        else:
            output_console().print(_table(found))

    return run(request, url, user)


def _table(policies: list[dict[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("vhost", "name", "pattern"):
        table.add_column(column, overflow="fold", max_width=MAX_NAME_WIDTH)
    table.add_column("applies to", no_wrap=True)
    table.add_column("priority", justify="right", no_wrap=True)
    table.add_column("definition", overflow="fold")
    for policy in policies:
        names = (Text(shortened(policy[key], 3 * MAX_NAME_WIDTH)) for key in ("vhost", "name", "pattern"))
        settings = "\n".join(f"{key}: {_shown(value)}" for key, value in policy["definition"].items())
        table.add_row(*names, policy["apply-to"], str(policy["priority"]), Text(settings))
    return table


def _shown(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value))


def _parsed(definition: str) -> dict[str, Any]:
    try:
        settings = json.loads(definition)
    except ValueError as error:
        raise RequestFailed(
            f"the definition is not valid JSON: {error}; example: '{{\"max-length\": 1000}}'", 400
        ) from None
    if not isinstance(settings, dict):
        raise RequestFailed("the definition must be a JSON object, such as '{\"max-length\": 1000}'", 400)
    return settings


def _path(is_operator: bool, *names: str | None) -> str:
    return path_of("operator-policies" if is_operator else "policies", *names)


def _kind(is_operator: bool, noun: str = "policy") -> str:
    return f"operator {noun}" if is_operator else noun
