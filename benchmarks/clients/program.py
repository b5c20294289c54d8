"""What the programs of this folder share: their arguments, the clock, and the line of JSON that each of them prints.

A program is one client library doing one workload once:

    python benchmarks/clients/with_pika.py --port 5672 --queue q --workload publish --messages 10000

`Job.begin` is called when everything is connected and warm, `Job.end` when the broker has the last message, or the last
ack; the time between the two is measured. The caller declares, fills and checks the queue.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping

BODY = b"x" * 100
IN_FLIGHT = 1000
PREFETCH = 1000
# A call that takes longer than this has failed.
CALL_LIMIT = 60.0


class Job:
    """One workload to be done once."""

    def __init__(self, port: int, queue: str, messages: int, warmup: int) -> None:
        self.port = port
        self.queue = queue
        self.messages = messages
        self.warmup = warmup
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._began = self._cpu_began = 0.0

    @property
    def total(self) -> int:
        """Messages of the warm-up and of the measurement."""
        return self.warmup + self.messages

    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def begin(self) -> None:
        self._cpu_began, self._began = time.process_time(), time.perf_counter()

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = time.process_time() - self._cpu_began


class Countdown:
    """Counts deliveries: tells when the warm-up is over and when the last one has come."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._count = 0

    def is_last(self) -> bool:
        self._count += 1
        if self._count == self._job.warmup:
            self._job.begin()
        return self._count == self._job.total


def run(workloads: Mapping[str, Callable[[Job], None]]) -> None:
    """Do what the command line says, and print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--workload", choices=list(workloads), required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=100)
    options = parser.parse_args()
    job = Job(options.port, options.queue, options.messages, max(1, options.warmup))
    workloads[options.workload](job)
    if job.seconds <= 0:
        raise SystemExit("the program ended without an end of its measurement")
    print(json.dumps({"messages": job.messages, "seconds": job.seconds, "cpu_seconds": job.cpu_seconds}))
