"""`warren scheduled list`, `show` and `cancel`: the messages of a running broker that wait for their time.

Standard output has the result, or with `--json` the broker's response. Exit codes: 0 done, 1 refused by the broker, 2
the request failed.
"""

from __future__ import annotations

import json
import time
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from warrenmq.cli.console import output_console
from warrenmq.cli.message_view import show_message
from warrenmq.cli.printable import printable, shortened
from warrenmq.cli.request import no_vhost, not_found_as, path_of, run
from warrenmq.cli.trace_view import duration, local, microseconds
from warrenmq.client.http import BrokerHttp

MAX_NAME_WIDTH = 16


def list_scheduled(vhost: str | None, count: int, url: str, user: str, as_json: bool) -> int:
    def request(broker: BrokerHttp) -> None:
        with not_found_as(no_vhost(vhost)):
            found = broker.get(path_of("scheduled", vhost), {"count": str(count)})
        messages, total = found["messages"], found["total"]
        if as_json:
            print(json.dumps(found, indent=2))
        elif not messages:
            print("no scheduled messages")
        else:
            console = output_console()
            console.print(_table(messages))
            if len(messages) < total:
                console.print(Text(f"The next {len(messages):,} of {total:,}: raise --count to see more.", style="dim"))

    return run(request, url, user)


def show_scheduled(id: int, vhost: str, form: str, truncate: int, url: str, user: str, as_json: bool) -> int:
    def request(broker: BrokerHttp) -> None:
        with not_found_as(_missing(id, vhost)):
            message = broker.get(path_of("scheduled", vhost, str(id)), {"truncate": str(truncate)})
        if as_json:
            print(json.dumps(message, indent=2))
        else:
            show_message(f"Scheduled message {id}", message, form, output_console())

    return run(request, url, user)


def cancel_scheduled(id: int, vhost: str, url: str, user: str) -> int:
    def request(broker: BrokerHttp) -> None:
        with not_found_as(_missing(id, vhost)):
            broker.delete(path_of("scheduled", vhost, str(id)))
        print(f"scheduled message {id} cancelled")

    return run(request, url, user)


def _missing(id: int, vhost: str) -> str:
    return f"no scheduled message {id} in vhost '{vhost}', it may have been delivered: see `warren scheduled list`"


def _table(messages: list[dict[str, Any]]) -> Table:
    has_vhosts = any(message["vhost"] != "/" for message in messages)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    if has_vhosts:
        table.add_column("vhost", no_wrap=True)
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("deliver at", no_wrap=True)
    table.add_column("in", justify="right", no_wrap=True)
    table.add_column("exchange", no_wrap=True)
    table.add_column("key", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    now = time.time_ns() // 1000
    for message in messages:
        left = microseconds(message["deliver_at"]) - now
        names = [shortened(message["vhost"], MAX_NAME_WIDTH // 2)] if has_vhosts else []
        table.add_row(
            *(Text(name) for name in names),
            str(message["id"]),
            local(message["deliver_at"])[:-7],
            duration(left) if left > 0 else "now",
            Text(shortened(message["exchange"] or "(default)", MAX_NAME_WIDTH)),
            Text(printable(message["routing_key"])),
            f"{message['payload_bytes']:,}",
        )
    return table
