"""Timers, for everything in the broker that waits.

Times are milliseconds since 1970. The core reads no clock: the server calls `advance` with the time, and schedules the
next call by `next_due_ms`. A timer never runs early, and at most RESOLUTION_MS late.

Timers are in buckets of RESOLUTION_MS, and the times of the buckets in a heap: scheduling and cancelling take constant
time, and a clock that jumps forward neither skips timers nor visits empty buckets. If it jumps back, timers wait until
their time comes again.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from operator import attrgetter

RESOLUTION_MS = 8

_due_ms = attrgetter("due_ms")


class Timer:
    """An action and its due time, which must not change while the timer is scheduled."""

    __slots__ = ("action", "due_ms")

    def __init__(self, due_ms: int, action: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.action = action

    def run(self) -> None:
        self.action()


class Timers:
    """The timers of a broker. `on_earlier` is called when the next due time gets earlier."""

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
        """Schedule this timer. It may be added again after it has run or was cancelled."""
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
        """Cancel a timer. Does nothing if it has run or was cancelled."""
        time = _bucket_time(timer.due_ms)
        bucket = self._buckets.get(time)
        if bucket is not None and bucket.pop(timer, timer) is None and not bucket:
            del self._buckets[time]
            if len(self._bucket_times) > 2 * len(self._buckets) + 64:
                self._bucket_times = list(self._buckets)
                heapify(self._bucket_times)

    def next_due_ms(self) -> int | None:
        """Return the time at which the next timer is due; None if there are no timers."""
        times = self._bucket_times
        while times and times[0] not in self._buckets:
            heappop(times)
        return times[0] if times else None

    def advance(self, now_ms: int) -> None:
        """Run due timers, ordered by due time and then by when they were scheduled.

        Timers that an action cancels do not run; those it schedules run in a later call, even if they are due.
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
    """Return the end of the bucket: the time at which all its timers are due."""
    return -(-due_ms // RESOLUTION_MS) * RESOLUTION_MS
