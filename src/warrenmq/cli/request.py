"""Shared by commands that ask a running broker over HTTP: exit codes, paths, and errors as lines on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from warrenmq.cli.console import NoPassword, credentials
from warrenmq.cli.printable import printable
from warrenmq.client.http import BrokerHttp, RequestFailed

DONE, REFUSED, FAILED = 0, 1, 2
REFUSALS = (400, 404)


def run(request: Callable[[BrokerHttp], None], url: str, user: str) -> int:
    """Make a request; return the exit code."""
    try:
        request(BrokerHttp(url, *credentials(user)))
    except (RequestFailed, NoPassword) as error:
        lines = [printable(line) for line in str(error).splitlines() if line]
        print(f"warren: {': '.join(lines[:2])}", *lines[2:], sep="\n", file=sys.stderr)
        return REFUSED if isinstance(error, RequestFailed) and error.status in REFUSALS else FAILED
    return DONE


@contextmanager
def not_found_as(missing: str) -> Iterator[None]:
    """Replace the broker's plain 404 with a text that names what is missing."""
    try:
        yield
    except RequestFailed as error:
        if error.status != 404:
            raise
        raise RequestFailed(missing, 404) from None


def no_vhost(vhost: str | None) -> str:
    return f"no such vhost, or no access to it: '{vhost}'"


def path_of(resource: str, *names: str | None) -> str:
    """Return the path of a resource; names that are None are left out."""
    parts = [quote(name, safe="", errors="surrogateescape") for name in names if name is not None]
    return "/api/" + "/".join([resource, *parts])
