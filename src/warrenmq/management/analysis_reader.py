"""Reads the stream `warren.analysis` inside the broker, when a request needs its results.

Nothing runs without requests. A request waits, up to a timeout, until all messages so far are read; the next request
reads the rest, and the response says how many are left. Messages are parsed in a thread, a page at a time, so that the
loop is not blocked. After a restart the newest messages are read again, and a stream that was deleted is read from its
beginning; trimmed messages are skipped, and messages that are not results are counted.

Owned by the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from warrenmq.core import reserved
from warrenmq.core.broker import Broker
from warrenmq.core.message import Message
from warrenmq.core.stream import Stream
from warrenmq.management.analysis import InvalidResult, ResultBoard, ResultMessage, parse_result

log = logging.getLogger("warrenmq.management")

STREAM_NAME = reserved.ANALYSIS
# Seconds that a request for the jobs waits; one for rows waits less, as it usually follows one for the jobs.
JOBS_TIMEOUT = 2.0
ROWS_TIMEOUT = 0.2
# Messages to read again after a restart: about 15 minutes of all jobs, with a batch each second.
REREAD_MESSAGES = 10_000
# The writer splits results at 1 MiB, so a larger message is not one of its own.
MAX_MESSAGE_SIZE = 4 * 1024 * 1024


class AnalysisReader:
    """`board` holds the results; `skipped` counts invalid messages, `skip_reason` is about the last one."""

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        self.board = ResultBoard()
        self.skipped = 0
        self.skip_reason: str | None = None
        self._broker = broker
        self._clock = clock
        self._reading = asyncio.Lock()
        self._stream: Stream | None = None  # the one that `board` is about
        self._next = 0  # the next offset to read

    @property
    def exists(self) -> bool:
        """True if the stream exists."""
        return self._broker.stream(STREAM_NAME) is not None

    @property
    def unread(self) -> int:
        """Number of messages that are not read yet."""
        return max(0, self._stream.readable - self._next) if self._stream is not None else 0

    async def catch_up(self, seconds: float) -> None:
        """Read the unread messages, for at most this long; invalid ones are skipped."""
        deadline = self._clock() + seconds
        async with self._reading:
            self._reset_if_stream_changed()
            while self.unread and self._clock() < deadline:
                await self._read_page()
                self._reset_if_stream_changed()

    def _reset_if_stream_changed(self) -> None:
        stream = self._broker.stream(STREAM_NAME)
        if stream is self._stream:
            return
        self._stream = stream
        self.board = ResultBoard()
        self.skipped = 0
        self.skip_reason = None
        self._next = max(0, stream.readable - REREAD_MESSAGES) if stream is not None else 0

    async def _read_page(self) -> None:
        stream = self._stream
        assert stream is not None
        page: asyncio.Future[tuple[int, list[Message]]] = asyncio.get_running_loop().create_future()
        stream.read(self._next, lambda *found: None if page.done() else page.set_result(found))
        first, messages = await page
        results, reasons = await asyncio.to_thread(_parse_results, messages)
        self.board.add(results)
        self._next = first + len(messages)
        self._count(reasons)

    def _count(self, reasons: Sequence[str]) -> None:
        if reasons and not self.skipped:
            log.warning("%s: skipped a message that is not a result of the analysis: %s", STREAM_NAME, reasons[0])
        if reasons:
            self.skipped += len(reasons)
            self.skip_reason = reasons[-1]


def _parse_results(messages: Sequence[Message]) -> tuple[list[ResultMessage], list[str]]:
    """Return the parsed messages, and the reasons for those that were skipped. Runs in a thread."""
    results: list[ResultMessage] = []
    reasons: list[str] = []
    for message in messages:
        if len(message.body) > MAX_MESSAGE_SIZE:
            reasons.append(f"it has {len(message.body)} bytes, more than {MAX_MESSAGE_SIZE}")
            continue
        try:
            results.append(parse_result(message.body))
        except InvalidResult as error:
            reasons.append(str(error))
    return results, reasons
