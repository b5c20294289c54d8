"""Which streams are read: those that are named, or those whose names match a pattern.

AMQP cannot list queues, so a pattern is asked of the broker's HTTP port, with the user and the virtual host of the URL.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request

from warrenmq.pipeline.errors import BadOption, BrokerUnreachable, NotAStream
from warrenmq.pipeline.source.options import ReadOptions

TIMEOUT = 10.0


def streams_of(options: ReadOptions) -> tuple[str, ...]:
    """The names of the streams to be read, in order."""
    if options.pattern is None:
        return options.streams
    names = [name for name in list_streams(options) if re.fullmatch(options.pattern, name)]
    return tuple(sorted(names))


def list_streams(options: ReadOptions) -> list[str]:
    """All streams of the virtual host."""
    assert options.http_url is not None
    factory = options.access.factory("lists streams")
    query = urllib.parse.urlencode({"vhost": factory.virtual_host})
    address = f"{options.http_url.rstrip('/')}/api/streams?{query}"
    login = base64.b64encode(f"{factory.username}:{factory.password}".encode()).decode()
    answer = _get(address, login)
    try:
        return [str(stream["name"]) for stream in json.loads(answer)["streams"]]
    except (ValueError, KeyError, TypeError):
        raise NotAStream(f"{address} does not answer as WarrenMQ does: name the streams by `stream`") from None


def _get(address: str, login: str) -> bytes:
    if not address.startswith(("http://", "https://")):
        raise BadOption(f"the option httpUrl begins with http:// or https://: {address}")
    request = urllib.request.Request(address, headers={"Authorization": f"Basic {login}"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        raise BadOption(f"the broker's HTTP port refuses to list streams: {error.code} {error.reason}") from None
    except OSError as error:
        raise BrokerUnreachable(f"the broker's HTTP port (option httpUrl) does not answer: {error}") from None
