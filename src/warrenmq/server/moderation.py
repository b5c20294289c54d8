"""Adaptive moderation: while turns are frequent and small, the loop pauses after some, so that input accumulates.

A client that writes each message by itself wakes the broker for each: one poll, one read and one write for a few bytes.
After a pause of 100 to 400 us one turn carries many messages. Their client gains more: once it has filled its
congestion window with small segments, its kernel packs what it writes next into large ones. The window of a sender
with BBR follows the number of segments that are acknowledged at a time, so there are turns without a pause between two
pauses; they keep it small (docs/decisions/0028). Network cards moderate their interrupts in the same way.

A client that waits for each reply would wait for the pause as well. So two pauses are compared by how fast input comes,
in four short windows (shorter, longer, shorter, longer), and the longer one is used if it was faster both times. What
is in use is compared again a few times a second. Sparse traffic is never delayed.

Owned by the loop thread. Compiled when the package is built (moderation.pxd).
"""

from collections.abc import Callable

# Turns are frequent if they are at most this many seconds apart, and small if they receive fewer bytes than this.
FREQUENT = 60e-6
SMALL = 4096
# One turn of this many may be followed by a pause. A window is some of these periods.
PERIOD = 16
TURNS = 4 * PERIOD
# The longer pause has to bring input in at least this many times as fast.
MIN_GAIN = 1.15
# Seconds until a pause in use is compared again; until a first pause is tried again, which is doubled each time.
COMPARE_AGAIN = 0.25
FIRST_RETRY = 0.02
MAX_RETRY = 1.0

_WINDOWS = 4
_PERIOD = PERIOD  # the same as a C integer


class Moderation:
    """`max_pause` in seconds; `bytes_in` of `end_turn` is what the broker has received since it started."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_compare_at",
        "_in_use",
        "_longer_rate",
        "_pauses",
        "_rate_without",
        "_retry",
        "_shorter",
        "_shorter_rate",
        "_since",
        "_turns_left",
        "_window",
        "pause",
    )

    def __init__(self, max_pause: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pauses = (0.0, max_pause / 4, max_pause)
        self.pause = 0.0  # between periods
        self._in_use = 0  # index of the pause in use while nothing is compared
        self._compare_at = 0.0
        self._retry = FIRST_RETRY
        self._rate_without = 0.0  # bytes per second without a pause, when that was compared last
        # The comparison: index of the shorter pause, number of the window or -1, and the last rates.
        self._shorter = 0
        self._window = -1
        self._shorter_rate = 0.0
        self._longer_rate = 0.0
        # The window: turns until it ends, time and bytes at its begin.
        self._turns_left = TURNS
        self._since = clock()
        self._bytes = 0

    def end_turn(self, bytes_in: int) -> float:
        """Return how long to pause after this turn, in seconds."""
        self._turns_left -= 1
        if self._turns_left % _PERIOD != 0:
            return 0.0
        if self._turns_left == 0:
            self._end_window(bytes_in)
        return self.pause

    def _end_window(self, bytes_in: int) -> None:
        now = self._clock()
        seconds = now - self._since
        received = bytes_in - self._bytes
        rate = received / seconds if seconds > 0.0 else 0.0
        if self._window >= 0:
            self._compare(rate, now)
        elif self._in_use == 0:
            if seconds < FREQUENT * TURNS and received < SMALL * TURNS and now >= self._compare_at:
                self._begin_comparison(0)
                self._compare(rate, now)
        elif rate < self._rate_without:
            self._use(0, now)
        elif now >= self._compare_at:
            self._begin_comparison(self._in_use - 1)
        self._since = now
        self._bytes = bytes_in
        self._turns_left = TURNS

    def _begin_comparison(self, shorter: int) -> None:
        """Compare this pause with the next longer one."""
        self._shorter = shorter
        self._window = 0
        self.pause = self._pauses[shorter]

    def _compare(self, rate: float, now: float) -> None:
        """Take the rate of a window: each with the longer pause must be faster than the ones beside it."""
        if self._window % 2 == 0:
            self._shorter_rate = rate
        else:
            self._longer_rate = rate
        self._window += 1
        if self._shorter == 0:
            self._rate_without = self._shorter_rate
        if self._window > 1 and self._longer_rate < MIN_GAIN * self._shorter_rate:
            self._use(self._shorter, now)
        elif self._window < _WINDOWS:
            self.pause = self._pauses[self._shorter + self._window % 2]
        else:
            self._use(self._shorter + 1, now)
            if self._in_use + 1 < len(self._pauses):
                self._begin_comparison(self._in_use)

    def _use(self, index: int, now: float) -> None:
        """Use this pause until the next comparison."""
        self._in_use = index
        self._window = -1
        self.pause = self._pauses[index]
        if index > 0:
            self._retry = FIRST_RETRY
            self._compare_at = now + COMPARE_AGAIN
        else:
            self._compare_at = now + self._retry
            self._retry = min(2.0 * self._retry, MAX_RETRY)
