"""A thread's worth of traffic on a channel of its own: publish with confirms, consume, ack, notice what is amiss."""

from __future__ import annotations

import threading
import time
from typing import Any

from .faces import PATIENCE

WINDOW = 50


class Talker:
    """Publishes numbers to a queue of its own and consumes them on the same channel, until its time is over."""

    def __init__(self, connection: Any, number: int) -> None:
        self.number = number
        self.sent = 0
        self.received = 0
        self.failures: list[str] = []
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.qos(200)
        self._queue = self._channel.queue_declare("", exclusive=True).queue
        self._all_came = threading.Event()
        self._is_over = False
        self._channel.consume(self._queue, self._on_delivery)

    def run(self, seconds: float) -> None:
        """Talk so long; then wait until all has come back."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self._send_window()
        except Exception as failure:  # noqa: BLE001 - told by judge()
            self.failures.append(f"publishing: {failure!r}")
        self._is_over = True
        if self.received < self.sent and not self._all_came.wait(4 * PATIENCE):
            self.failures.append(f"{self.received} of {self.sent} came")

    def _send_window(self) -> None:
        window = []
        for _ in range(WINDOW):
            window.append(self._channel.publish("", self._queue, b"%d" % self.sent))
            self.sent += 1
        for confirmation in window:
            confirmation.result(PATIENCE)

    def _on_delivery(self, delivery: Any) -> None:
        if int(delivery.body) != self.received or delivery.redelivered:
            self.failures.append(f"{delivery.body!r} came where {self.received} was due")
        self.received += 1
        if delivery.ack() is not True:
            self.failures.append(f"the ack of {delivery.body!r} was not sent")
        if self._is_over and self.received == self.sent:
            self._all_came.set()

    def judge(self) -> None:
        assert self.failures == []
        assert self.received == self.sent > 0
        # An answer on the same channel comes after all acks before it were heard.
        self._channel.recover()
        assert self._channel.queue_declare(self._queue, passive=True).message_count == 0


def run_talkers(talkers: list[Talker], seconds: float) -> None:
    threads = [threading.Thread(target=talker.run, args=(seconds,)) for talker in talkers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 5 * PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
