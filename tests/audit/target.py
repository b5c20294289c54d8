"""The broker under attack: a real `warren serve`, and a well-behaved client beside the attacker.

`attacked` runs one attack and then checks what must hold after any of them: the process is alive and answers, the
well-behaved client lost nothing, and the log has neither a traceback nor a raw control character.

Owned by the thread that runs the attack; the well-behaved client has a thread of its own.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.ports import free_port
from tests.support.process import BrokerProcess
from tests.support.wire import Address, WireConnection

PATIENCE = 60.0
PAUSE = 0.005  # between two messages of the well-behaved client
PERSISTENT = {"delivery_mode": 2}
GUEST = {
    "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
    "Content-Type": "application/json",
}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class Breach(AssertionError):
    """The broker did not hold; the text says what happened."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the attacks are: the test suite replays them small, `make audit` in full."""

    is_full: bool

    def pick(self, short: int, full: int) -> int:
        return full if self.is_full else short


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. `replay` returns a line for the report, or raises Breach (or any other error)."""

    name: str
    about: str
    replay: Callable[[Target, Scale], str]
    environ: Mapping[str, str] = field(default_factory=dict)
    descriptors: int | None = None  # RLIMIT_NOFILE of the broker, soft and hard


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Bystander(threading.Thread):
    """Publishes persistent messages to a durable queue, one at a time, each confirmed before the next."""

    def __init__(self, address: Address) -> None:
        super().__init__(name="bystander", daemon=True)
        self._address = address
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self.confirmed = 0
        self.seconds: list[float] = []

    def run(self) -> None:
        try:
            with WireConnection(self._address).open() as connection:
                connection.socket.settimeout(PATIENCE)
                channel = connection.channel()
                channel.call("queue.declare", queue="bystander", durable=True)
                channel.call("confirm.select")
                while not self._is_over.wait(PAUSE):
                    began = time.perf_counter()
                    channel.publish(b"%d" % self.confirmed, PERSISTENT, routing_key="bystander")
                    channel.expect("basic.ack")
                    self.confirmed += 1
                    self.seconds.append(time.perf_counter() - began)
        except BaseException as failure:  # noqa: BLE001 - raised by `finish`, in the thread that waits
            self._failure = failure

    def finish(self) -> None:
        """Stop publishing; Breach unless everything that was confirmed is in the queue, in order."""
        self._is_over.set()
        self.join(PATIENCE * 2)
        if self._failure is not None:
            raise Breach(f"the well-behaved client failed after {self.confirmed} messages: {self._failure!r}")
        with WireConnection(self._address).open() as connection:
            channel = connection.channel()
            found = []
            while (content := channel.get("bystander")) is not None:
                found.append(int(content.body))
        if found != list(range(self.confirmed)):
            raise Breach(f"the well-behaved client had {self.confirmed} confirms, its queue holds {len(found)}")

    def summary(self) -> str:
        if not self.seconds:
            return "no message of the bystander in that time"
        ordered = sorted(self.seconds)
        p99 = ordered[int(len(ordered) * 0.99)]
        figures = f"p50 {statistics.median(ordered) * 1e3:.1f}, p99 {p99 * 1e3:.1f}, max {ordered[-1] * 1e3:.0f} ms"
        return f"bystander: {self.confirmed} confirmed, {figures}"


class Target:
    """A broker that an attack may do anything to. `folder` is its data folder."""

    def __init__(self, folder: Path, attack: Attack) -> None:
        self.folder = folder
        self.http_port = free_port()
        limit = attack.descriptors
        self.broker = BrokerProcess(
            folder,
            dict(attack.environ),
            http_port=str(self.http_port),
            open_files=None if limit is None else (limit, limit),
        )

    @property
    def address(self) -> Address:
        return self.broker.address

    def __enter__(self) -> Self:
        self.broker.ready()
        self.until(lambda: self.ask("GET", "/healthz").status == 200, "the HTTP port answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.__exit__(kind, error, trace)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        """One HTTP request, as guest unless `headers` say otherwise."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(GUEST if headers is None else headers))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def ask_json(self, path: str) -> Any:
        return json.loads(self.ask("GET", path).body)

    def metric(self, name: str) -> float:
        """The value of one series, labels included in the name; 0 where there is none."""
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series == name:
                return float(value)
        return 0.0

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.broker.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def until(self, condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Wait for a condition; Breach where it does not come true."""
        ends_at = time.monotonic() + patience
        while True:
            try:
                if condition():
                    return
            except (OSError, http.client.HTTPException):
                pass
            if self.broker.is_dead:
                raise Breach(f"the broker exited: {self.broker.log()[-500:]}")
            if time.monotonic() > ends_at:
                raise Breach(f"not within {patience:.0f} s: {what}")
            time.sleep(0.02)

    def require_well(self) -> None:
        """What must hold after every attack."""
        if self.broker.is_dead:
            raise Breach(f"the broker exited: {self.broker.log()[-500:]}")
        self.until(lambda: self.ask("GET", "/healthz").status == 200, "/healthz answers")
        log = self.broker.log()
        if "Traceback" in log:
            raise Breach(f"a traceback in the log: {log[log.index('Traceback') :][:1500]}")
        if found := _CONTROL.search(log):
            raise Breach(f"a raw control character in the log: {log[max(0, found.start() - 80) : found.end() + 20]!r}")


def attacked(folder: Path, attack: Attack, scale: Scale) -> str:
    """Replay one attack on a new broker; a line for the report, or Breach."""
    with Target(folder, attack) as target:
        bystander = Bystander(target.address)
        bystander.start()
        target.until(lambda: bystander.confirmed > 0 or not bystander.is_alive(), "the bystander publishes")
        told = attack.replay(target, scale)
        bystander.finish()
        target.require_well()
        if code := target.broker.stop():
            raise Breach(f"the broker stopped with exit code {code}: {target.broker.log()[-500:]}")
    return f"{told}; {bystander.summary()}"
