"""Access to the broker from driver and executors: its URL, and retries while it is away.

Options are pickled to all workers and can show up in Spark's error texts, so a URL with a password is better kept
elsewhere: `urlFile` and `urlEnv` name a file or an environment variable that each process reads when it connects.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from warrenmq import client
from warrenmq.client.backoff import Backoff
from warrenmq.pipeline.errors import BadOption, BrokerUnreachable

log = logging.getLogger("warrenmq.pipeline")

ACCESS_OPTIONS = ("url", "urlEnv", "urlFile", "retryTimeout")
RETRY_TIMEOUT = 120.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The options that say where the broker is; exactly one of the three is set."""

    url: str | None = field(default=None, repr=False)
    url_env: str | None = None
    url_file: str | None = None
    retry_timeout: float = RETRY_TIMEOUT

    @classmethod
    def of(cls, options: Mapping[str, str]) -> BrokerAccess:
        """Return the access of these options, whose names are in lower case."""
        given = [name for name in ("url", "urlEnv", "urlFile") if name.lower() in options]
        if len(given) != 1:
            raise BadOption(
                "say where the broker is, in one way: `url` (amqp://user:password@host:5672/vhost), "
                "`urlFile` (a file that holds it) or `urlEnv` (an environment variable that holds it)"
            )
        access = cls(
            url=options.get("url"),
            url_env=options.get("urlenv"),
            url_file=options.get("urlfile"),
            retry_timeout=_seconds(options.get("retrytimeout")),
        )
        if access.url is not None:
            access.factory("checks")  # raises at once if the URL is invalid
        return access

    def resolve(self) -> str:
        """Return the URL, read in this process."""
        if self.url is not None:
            return self.url
        if self.url_env is not None:
            found = os.environ.get(self.url_env)
            if not found:
                raise BadOption(
                    f"the environment variable {self.url_env} (option urlEnv) is not set in this process of Spark: "
                    f"set it before the session starts, and spark.executorEnv.{self.url_env} for executors"
                )
            return found
        assert self.url_file is not None
        try:
            return Path(self.url_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadOption(
                f"the file of the option urlFile cannot be read here (it must be on every executor): {error}"
            ) from None

    def factory(self, name: str) -> client.ConnectionFactory:
        try:
            # Without recovery: the reader of a range knows where to resume, the client does not.
            return client.ConnectionFactory(self.resolve(), name=f"spark {name}", recovery=False)
        except client.Misuse as error:
            raise BadOption(f"the URL of the broker cannot be used: {error}") from None

    def connect(self, name: str) -> client.Connection:
        return self.factory(name).connect()

    def address(self) -> str:
        """Return host and port, without user and password."""
        factory = self.factory("")
        return f"{factory.host}:{factory.port}"


class RetryDeadline:
    """Retries with backoff, for at most `retryTimeout` since the broker last answered."""

    def __init__(self, access: BrokerAccess) -> None:
        self._access = access
        self._backoff = Backoff(initial=0.1, longest=5.0)
        self._deadline: float | None = None

    def reset(self) -> None:
        """The broker answered."""
        self._deadline = None

    def wait(self, failure: Exception) -> None:
        """Wait before the next attempt, or raise BrokerUnreachable."""
        now = time.monotonic()
        if self._deadline is None:
            self._backoff.reset()
            self._deadline = now + self._access.retry_timeout
            log.warning("the broker does not answer (%s): retrying", failure)
        delay = self._backoff.next()
        if now + delay > self._deadline:
            raise BrokerUnreachable(
                f"the broker at {self._access.address()} did not answer for {self._access.retry_timeout:g} s "
                f"(option retryTimeout): {failure}"
            ) from failure
        time.sleep(delay)


def is_outage(failure: Exception) -> bool:
    """Return True if a retry may succeed: the broker is away or stopping; False if it refused."""
    if isinstance(failure, client.AuthenticationFailed):
        return False
    if isinstance(failure, client.ConnectionClosed):
        # 320: the broker is stopping; other codes are refusals. 0: the connection broke.
        return failure.reason.reply_code in (0, 320)
    return isinstance(
        failure, (client.ConnectionFailed, client.ConnectionLost, client.CallTimedOut, client.PublishLost)
    )


class ReconnectingClient:
    """A connection of the driver, opened on first use and reopened after an outage. For one thread."""

    def __init__(self, access: BrokerAccess, name: str) -> None:
        self._access = access
        self._name = name
        self._connection: client.Connection | None = None

    def call(self, action: Callable[[client.Connection], Result]) -> Result:
        """Call `action` with a connection, and again after an outage: it must be idempotent."""
        retry = RetryDeadline(self._access)
        while True:
            try:
                if self._connection is None:
                    self._connection = self._access.connect(self._name)
                return action(self._connection)
            except client.ClientError as failure:
                self.close()
                if not is_outage(failure):
                    raise
                retry.wait(failure)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except client.ClientError as failure:
                log.debug("closing a connection: %s", failure)  # it was already lost


def _seconds(text: str | None) -> float:
    if text is None:
        return RETRY_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise BadOption(f"the option retryTimeout is a number of seconds above 0, not {text!r}")
    return seconds
