"""`warren queues` and `warren peek`: the queues of a running broker, and the messages in them, over its HTTP API.

Nothing is consumed or changed. Standard output has the result, or with `--json` the broker's response. Exit codes: 0
done, 1 refused by the broker, 2 the request failed.
"""

from __future__ import annotations

import heapq
import json
import shlex
from operator import itemgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from warrenmq.cli.console import output_console
from warrenmq.cli.message_view import show_message
from warrenmq.cli.printable import printable
from warrenmq.cli.request import no_vhost, not_found_as, path_of, run
from warrenmq.client.http import BrokerHttp

COUNTS = ("messages_ready", "messages_unacknowledged", "messages_retrying", "consumers")
DEFAULT_VHOST = "/"


def list_queues(vhost: str | None, count: int, url: str, user: str, as_json: bool) -> int:
    """Print a table of queues, those with the most messages if there are more than `count`; return the exit code."""

    def request(broker: BrokerHttp) -> None:
        with not_found_as(no_vhost(vhost)):
            found = broker.get(path_of("queues", vhost))
        if as_json:
            print(json.dumps(found, indent=2))
        elif not found:
            print("no queues")
        else:
            console = output_console()
            console.print(
                _table(found if len(found) <= count else heapq.nlargest(count, found, itemgetter("messages")))
            )
            sums = [sum(queue[name] for queue in found) for name in COUNTS]
            console.print(f"queues: {len(found):,}, ready: {sums[0]:,}, unacked: {sums[1]:,}, retrying: {sums[2]:,}")
            if len(found) > count:
                console.print(Text(f"The {count:,} with the most messages: raise --count to see more.", style="dim"))

    return run(request, url, user)


def _table(queues: list[dict[str, Any]]) -> Table:
    has_vhosts = any(queue["vhost"] != DEFAULT_VHOST for queue in queues)
    has_policies = any(queue["policy"] is not None for queue in queues)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    if has_vhosts:
        table.add_column("vhost", overflow="fold", min_width=5, max_width=12)
    table.add_column("name", overflow="fold", min_width=8)
    table.add_column("type", no_wrap=True)
    for column in ("ready", "unacked", "retrying", "consumers"):
        table.add_column(column, justify="right", no_wrap=True)
    if has_policies:
        table.add_column("policy", overflow="fold", min_width=6, max_width=12)
    for queue in queues:
        row = [Text(printable(queue["vhost"]))] if has_vhosts else []
        row += [Text(printable(queue["name"]), style="bold"), Text(queue["type"])]
        row += [Text(f"{queue[name]:,}", style="" if queue[name] else "dim") for name in COUNTS]
        row += [Text(printable(queue["policy"] or ""))] if has_policies else []
        table.add_row(*row)
    return table


def peek(
    queue: str,
    vhost: str,
    start: str | None,
    count: int,
    is_retrying: bool,
    form: str,
    truncate: int,
    url: str,
    user: str,
    as_json: bool,
) -> int:
    """Print the messages that wait in a queue, or for their next attempt; return the exit code."""

    def request(broker: BrokerHttp) -> None:
        parameters = {"count": str(count), "truncate": str(truncate)} | ({} if start is None else {"from": start})
        with not_found_as(f"no queue '{queue}' in vhost '{vhost}', or no access to it: see `warren queues`"):
            found = broker.get(path_of("queues", vhost, queue, "retrying" if is_retrying else "messages"), parameters)
        if as_json:
            print(json.dumps(found, indent=2))
            return
        console = output_console()
        for message in found["messages"]:
            show_message(
                f"Message {message['position']}" if "position" in message else "Message", message, form, console
            )
        if found.get("unreadable"):
            damaged = f"{found['unreadable']:,} messages are on a damaged page of the disk and cannot be shown."
            console.print(Text(f"{damaged} Stop the broker and run `warren check DIR`.", style="yellow"))
        if found["next"] is not None:
            again = ["warren", "peek", queue, "--from", found["next"]]
            again += ["--vhost", vhost] if vhost != DEFAULT_VHOST else []
            again += ["--retrying"] if is_retrying else []
            console.print(Text(f"There are more: {printable(shlex.join(again))}", style="dim"), soft_wrap=True)
        elif not found["messages"]:
            where = "at this position or after it " if start is not None else ""
            print(f"no messages wait {where}{'for a retry ' if is_retrying else ''}in queue {printable(queue)}")

    return run(request, url, user)
