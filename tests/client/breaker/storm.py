"""The storm: thousands of messages over connections that break at random, and the judgement of what came of them.

Everything goes through a Breaker whose faults come from a seed. Publishers with confirms write to queues, half of them
sending again themselves what was lost, half leaving that to the client. Consumers ack, by callback and by iteration. A
bystander makes calls of all kinds meanwhile. When the time is over the faults end, and then:

- every message that was confirmed has been received;
- every consumer is back: each queue's probe is consumed, also on a queue that the server names;
- every call that was begun has ended, none much later than its time-out;
- the queues are empty after the close, so that the acks were heard;
- no thread, task or descriptor is left.

Threads: each publisher, iterator and bystander has its own. Shared are the tallies, under their lock.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.client.behaviour.faces import Face
from tests.support.breaker import Breaker, RandomFaults
from warrenmq import client

CALL_TIMEOUT = 4.0
SLACK = 15.0  # beyond its time-out a call of a busy machine may take so long
WINDOW = 40
DRAIN_LIMIT = 60.0
EXPECTED = (client.ConnectionLost, client.CallTimedOut, client.PublishLost)


@dataclass
class Tally:
    """What happened, and what should not have."""

    seed: int
    confirmed: int = 0
    received: int = 0
    duplicates: int = 0
    republished: int = 0
    recoveries: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        outcomes = ", ".join(f"{count} {kind}" for kind, count in self.outcomes.most_common())
        return (
            f"seed {self.seed}: {self.confirmed} confirmed, {self.received} received ({self.duplicates} again), "
            f"{self.republished} sent again by the publishers, {self.recoveries} recoveries\n"
            f"  faults: {faults}\n  calls: {outcomes}"
        )


class Calls:
    """Counts calls as they begin and end."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.late: list[str] = []
        self._running: dict[int, str] = {}
        self._lock = threading.Lock()
        self._next = 0

    @contextmanager
    def made(self, what: str, timeout: float = CALL_TIMEOUT) -> Iterator[None]:
        with self._lock:
            self._next += 1
            number = self._next
            self._running[number] = what
        began = time.monotonic()
        outcome = "well"
        try:
            yield
        except BaseException as failure:
            outcome = type(failure).__name__
            raise
        finally:
            took = time.monotonic() - began
            with self._lock:
                del self._running[number]
                self.outcomes[outcome] += 1
                if took > timeout + SLACK:
                    self.late.append(f"{what} took {took:.1f} s of {timeout:.1f}")

    def running(self) -> list[str]:
        with self._lock:
            return list(self._running.values())


class Lane:
    """One queue: who has published what to it, and what came out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confirmed: set[bytes] = set()
        self.received: set[bytes] = set()
        self.duplicates = 0
        self.probe = threading.Event()
        self.lock = threading.Lock()

    def on_delivery(self, delivery: Any) -> None:
        key = bytes(delivery.body).partition(b" ")[0]
        with self.lock:
            if key in self.received:
                self.duplicates += 1
            self.received.add(key)
        if key == b"probe":
            self.probe.set()
        delivery.ack()

    def missing(self) -> set[bytes]:
        with self.lock:
            return self.confirmed - self.received


class Storm:
    """One storm, from the first declaration to the judgement."""

    def __init__(
        self,
        face: Face,
        url: str,
        seed: int,
        seconds: float,
        publishers: int = 4,
        calm_bytes: int = 60_000,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._face = face
        self._url = url
        self._seconds = seconds
        self._publishers = publishers
        self._report = report
        self._breaker = Breaker(url, RandomFaults(seed, calm_bytes))
        self._random = random.Random(seed)
        self._calls = Calls()
        self._over = threading.Event()
        self._failures: list[str] = []
        prefix = f"storm.{uuid.uuid4().hex[:8]}"
        self._exchange = f"{prefix}.exchange"
        self._lanes = [Lane(f"{prefix}.{number}") for number in range(3)]
        self._events = Lane("")  # the queue that the server names
        self.tally = Tally(seed)

    def run(self) -> Tally:
        descriptors = _descriptors()
        before = set(threading.enumerate())
        direct = self._face.connect(self._url)
        try:
            channel = direct.channel()
            channel.exchange_declare(self._exchange, "topic")
            for lane in self._lanes:
                channel.queue_declare(lane.name, durable=True)
            self._rage(channel)
            for lane in self._lanes:
                left = channel.queue_delete(lane.name)
                if left:
                    self._failures.append(f"{left} messages were left in {lane.name}: their acks were not heard")
            channel.exchange_delete(self._exchange)
        finally:
            direct.close()
            self._breaker.close()
        self._look_for_leaks(before - {threading.current_thread()}, descriptors)
        self._sum_up()
        return self.tally

    # -- the storm ---------------------------------------------------------------------------------------------------

    def _rage(self, direct: Any) -> None:
        settings: dict[str, Any] = {
            "recovery": client.Recovery(initial=0.02, longest=0.3),
            "heartbeat": 1,
            "call_timeout": CALL_TIMEOUT,
            "connect_timeout": 3.0,
            "close_timeout": 3.0,
        }
        fault_source, self._breaker.fault_source = self._breaker.fault_source, None  # connect without faults
        connections = {
            "fail": self._connect(**settings),
            "resend": self._connect(unconfirmed="resend", **settings),
            "consumer": self._connect(**settings),
        }
        self._start_consumers(connections["consumer"])
        self._breaker.fault_source = fault_source
        self._breaker.reset()
        threads = [
            *(
                threading.Thread(target=self._guarded, args=(self._publish, connection, number))
                for number in range(self._publishers)
                for connection in [connections["resend" if number % 2 else "fail"]]
            ),
            threading.Thread(target=self._guarded, args=(self._stand_by, connections["consumer"])),
        ]
        for thread in threads:
            thread.start()
        self._pass_time()
        self._over.set()
        limit = time.monotonic() + DRAIN_LIMIT
        self._join(threads[-1:], limit)
        # Publishers end when all that they sent is confirmed, which happens without faults.
        self._breaker.calm()
        self._join(threads, limit)
        self._drain(connections["consumer"], direct)
        for kind, connection in connections.items():
            with self._calls.made(f"close of {kind}", 3.0):
                connection.close()
        self._join([self._iterator], time.monotonic() + DRAIN_LIMIT)

    def _connect(self, **settings: Any) -> Any:
        connection = self._face.connect(self._breaker.url, **settings)
        connection.add_recovery_listener(self._on_recovery)
        return connection

    def _on_recovery(self, event: Any) -> None:
        if event.kind == "recovered":
            self.tally.recoveries += 1

    def _pass_time(self) -> None:
        deadline = time.monotonic() + self._seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 10.0))
            if self._report and left > 10.0:
                confirmed = sum(len(lane.confirmed) for lane in self._lanes)
                received = sum(len(lane.received) for lane in self._lanes)
                self._report(
                    f"{left:5.0f} s left: {confirmed} confirmed, {received} received, "
                    f"{self.tally.recoveries} recoveries, {self._breaker.faults.total()} faults"
                )

    def _join(self, threads: list[threading.Thread], deadline: float) -> None:
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                self._failures.append(f"{thread.name} hangs in {self._calls.running()}")

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is a finding
            self._failures.append(f"{work.__name__}: {failure!r}")

    # -- who takes part ----------------------------------------------------------------------------------------------

    def _start_consumers(self, connection: Any) -> None:
        channel = connection.channel()
        channel.qos(100)
        for lane in self._lanes[:2]:
            channel.consume(lane.name, lane.on_delivery)
        own = connection.channel()
        queue = own.queue_declare("", exclusive=True).queue
        own.queue_bind(queue, self._exchange, "event.#")
        own.consume(queue, self._events.on_delivery)
        iterated = connection.channel()
        iterated.qos(50)
        consumer = iterated.consume(self._lanes[2].name)
        self._iterator = threading.Thread(target=self._guarded, args=(self._iterate, consumer))
        self._iterator.start()

    def _iterate(self, consumer: Any) -> None:
        for delivery in consumer:
            self._lanes[2].on_delivery(delivery)

    def _publish(self, connection: Any, publisher: int) -> None:
        """Publish numbers, each until it is confirmed."""
        channel = self._open_confirming(connection)
        draw = random.Random(self.tally.seed * 100 + publisher)
        padding = b"x" * 300
        next_number, again = 0, list[bytes]()
        while again or not self._over.is_set():
            window: dict[bytes, tuple[Lane, Any]] = {}
            while len(window) < WINDOW and (again or not self._over.is_set()):
                if again:
                    key = again.pop()
                else:
                    key, next_number = b"%d:%d" % (publisher, next_number), next_number + 1
                lane = self._lanes[int(key.partition(b":")[2]) % len(self._lanes)]
                confirmation = self._try_publish(channel, lane, key + b" " + padding[: draw.randrange(300)])
                if confirmation is None:
                    again.append(key)
                else:
                    window[key] = lane, confirmation
            for key, (lane, confirmation) in window.items():
                if self._is_confirmed(confirmation, is_resent=publisher % 2 == 1):
                    with lane.lock:
                        lane.confirmed.add(key)
                else:
                    again.append(key)
                    self.tally.republished += 1

    def _try_publish(self, channel: Any, lane: Lane, body: bytes) -> Any:
        try:
            with self._calls.made("publish"):
                return channel.publish("", lane.name, body, timeout=CALL_TIMEOUT)
        except EXPECTED:
            time.sleep(0.01)
            return None

    def _is_confirmed(self, confirmation: Any, is_resent: bool) -> bool:
        try:
            # Where the client sends again, the word comes after the recovery, however long that takes.
            timeout = DRAIN_LIMIT if is_resent else 5 * CALL_TIMEOUT
            with self._calls.made("confirmation", timeout):
                confirmation.result(timeout)
        except client.PublishLost:
            if is_resent:
                self._failures.append("a publish that was to be sent again was given up")
            return False
        return True

    def _stand_by(self, connection: Any) -> None:
        """Calls of all kinds while it storms; each ends, well or not."""
        channel = self._open_confirming(connection)
        draw = random.Random(self.tally.seed + 1)
        lane = self._lanes[0].name
        attempts: dict[str, Callable[[], Any]] = {
            "declare": lambda: channel.queue_declare(lane, passive=True),
            "bind": lambda: channel.queue_bind(lane, self._exchange, "never.used"),
            "unbind": lambda: channel.queue_unbind(lane, self._exchange, "never.used"),
            "qos": lambda: channel.qos(draw.randrange(1, 100)),
            "get": lambda: self._get(channel),
            "open": lambda: connection.channel().close(),
            "consume": lambda: channel.consume(lane, self._lanes[0].on_delivery).cancel(),
            "confirms": lambda: (channel.publish(self._exchange, "unheard", b""), channel.wait_for_confirms()),
            "short": lambda: channel.queue_declare(lane, passive=True, timeout=draw.uniform(0.0, 0.05)),
        }
        while not self._over.is_set():
            what = draw.choice(list(attempts))
            try:
                with self._calls.made(what, 2 * CALL_TIMEOUT):
                    attempts[what]()
            except EXPECTED:
                pass
            time.sleep(draw.uniform(0.0, 0.02))

    def _get(self, channel: Any) -> None:
        delivery = channel.get(self._lanes[1].name)
        if delivery is not None:
            self._lanes[1].on_delivery(delivery)

    def _open_confirming(self, connection: Any) -> Any:
        channel = self._persist("channel", lambda: connection.channel())
        self._persist("confirm_select", lambda: channel.confirm_select())
        return channel

    def _persist(self, what: str, attempt: Callable[[], Any]) -> Any:
        """Make the call until it works; without faults it does."""
        while True:
            try:
                with self._calls.made(what):
                    return attempt()
            except EXPECTED:
                time.sleep(0.01)

    # -- the judgement -----------------------------------------------------------------------------------------------

    def _drain(self, consumer: Any, direct: Any) -> None:
        """Without faults everything that is confirmed comes, and every consumer is there."""
        deadline = time.monotonic() + DRAIN_LIMIT
        for lane in self._lanes:
            direct.publish("", lane.name, b"probe")
        while time.monotonic() < deadline:
            if not self._events.probe.is_set():
                direct.publish(self._exchange, "event.probe", b"probe")
            waited = [lane for lane in self._lanes if lane.missing() or not lane.probe.is_set()]
            if not waited and self._events.probe.is_set():
                break
            time.sleep(0.02)
        for lane in self._lanes:
            if missing := lane.missing():
                self._failures.append(f"confirmed and lost in {lane.name}: {sorted(missing)[:5]} of {len(missing)}")
            if not lane.probe.is_set():
                self._failures.append(f"the consumer of {lane.name} did not come back")
        if not self._events.probe.is_set():
            self._failures.append("the consumer of the queue that the server names did not come back")
        if not consumer.is_open:
            self._failures.append("the consumers' connection is not open")

    def _look_for_leaks(self, before: set[threading.Thread], descriptors: int) -> None:
        deadline = time.monotonic() + SLACK
        while time.monotonic() < deadline:
            threads = [
                thread.name
                for thread in threading.enumerate()
                if thread not in before
                and thread is not threading.current_thread()
                and not thread.name.startswith("asyncio_")  # the face's own pool, where callbacks wait
            ]
            left = self._face.leftovers() + threads
            more = _descriptors() - descriptors
            if not left and more <= 0:
                return
            time.sleep(0.02)
        if left:
            self._failures.append(f"left running: {left}")
        if more > 0:
            self._failures.append(f"{more} descriptors were left open")

    def _sum_up(self) -> None:
        tally = self.tally
        tally.confirmed = sum(len(lane.confirmed) for lane in self._lanes)
        tally.received = sum(len(lane.received) for lane in self._lanes)
        tally.duplicates = sum(lane.duplicates for lane in self._lanes)
        tally.faults = self._breaker.faults
        tally.outcomes = self._calls.outcomes
        tally.problems = [*self._failures, *self._calls.late]
        if running := self._calls.running():
            tally.problems.append(f"calls that never ended: {running}")


def _descriptors() -> int:
    """How many descriptors this process has open; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
