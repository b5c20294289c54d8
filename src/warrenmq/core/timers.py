"""Timers: what is to be done at a time, for all features of the broker that wait.

Times are milliseconds since 1970. The core reads no clock: the server calls `advance` with the time, and asks
`next_due_ms` when to come again. A timer never runs early, and at most RESOLUTION_MS late.

Timers lie in buckets of RESOLUTION_MS; a heap holds the buckets' times. So scheduling and cancelling take the same time
however many there are, and a clock that jumps forward skips nothing and visits no empty bucket. After it jumps back,
timers wait until their time comes again.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from operator import attrgetter

RESOLUTION_MS = 16

_due_ms = attrgetter("due_ms")


class Timer:
    """Something to be done at a time, which does not change while it is scheduled."""

    __slots__ = ("action", "due_ms")

    def __init__(self, due_ms: int, action: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.action = action

    def run(self) -> None:
        self.action()


class Timers:
    """One per broker. `on_earlier` is called when the next timer is due earlier than before."""

    __slots__ = ("_bucket_times", "_buckets", "on_earlier")

    def __init__(self) -> None:
        self.on_earlier: Callable[[], None] | None = None
        self._buckets: dict[int, dict[Timer, None]] = {}  # by the time at which all in it are due
        self._bucket_times: list[int] = []  # a heap; may hold times whose bucket is gone

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def schedule(self, due_ms: int, action: Callable[[], None]) -> Timer:
        """Call `action` when `advance` is called with this time or later."""
        timer = Timer(due_ms, action)
        self.add(timer)
        return timer

    def add(self, timer: Timer) -> None:
        """Run this timer when it is due. It may be added again after it has run or was cancelled."""
        time = _bucket_time(timer.due_ms)
        bucket = self._buckets.get(time)
        if bucket is not None:
            bucket[timer] = None
            return
        self._buckets[time] = {timer: None}
        heappush(self._bucket_times, time)
        if self.on_earlier is not None and self._bucket_times[0] == time:
            self.on_earlier()

    def cancel(self, timer: Timer) -> None:
        """Do not run it. Cancelling one that has run, or was cancelled, does nothing."""
        time = _bucket_time(timer.due_ms)
        bucket = self._buckets.get(time)
        if bucket is not None and bucket.pop(timer, timer) is None and not bucket:
            del self._buckets[time]
            if len(self._bucket_times) > 2 * len(self._buckets) + 64:
                self._bucket_times = list(self._buckets)
                heapify(self._bucket_times)

    def next_due_ms(self) -> int | None:
        """When `advance` has something to do next; None if there are no timers."""
        times = self._bucket_times
        while times and times[0] not in self._buckets:
            heappop(times)
        return times[0] if times else None

    def advance(self, now_ms: int) -> None:
        """Run what is due, in the order of due times; of equal ones, in the order they were scheduled.

        What an action cancels does not run; what it schedules runs in a later call, even if it is due.
        """
        times = []
        while (time := self.next_due_ms()) is not None and time <= now_ms:
            times.append(heappop(self._bucket_times))
        try:
            for time in times:
                self._run(self._buckets.get(time, {}))
        finally:
            for time in times:
                bucket = self._buckets.get(time)
                if bucket:
                    heappush(self._bucket_times, time)  # with what actions have scheduled
                elif bucket is not None:
                    del self._buckets[time]

    def _run(self, bucket: dict[Timer, None]) -> None:
        for timer in sorted(bucket, key=_due_ms):
            if bucket.pop(timer, timer) is None:  # not cancelled meanwhile
                timer.run()


def _bucket_time(due_ms: int) -> int:
    """The end of the bucket: then all in it are due."""
    return -(-due_ms // RESOLUTION_MS) * RESOLUTION_MS
