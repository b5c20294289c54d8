"""Reads the stream `warren.analysis` inside the broker, when somebody asks for what it holds.

Nothing is done while nobody looks. Who asks waits until all messages so far are read, but not for long: what is left
is read by the next who asks, and the answer says how much that is. Messages are read in a thread, a page at a time, so
that the loop goes on. After a restart the newest messages are read again. A stream that is deleted begins anew; what
was trimmed is passed over; a message that is no answer is counted.

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
from warrenmq.management.analysis import Answer, Board, NoAnswer, read_answer

log = logging.getLogger("warrenmq.management")

STREAM_NAME = reserved.ANALYSIS
# Who asks for the jobs waits so many seconds; who asks for the rows of one has mostly just asked for the jobs.
PATIENCE = 2.0
SHORT_PATIENCE = 0.2
# So many messages are read again after a restart: with a batch each second, about a quarter of an hour of all jobs.
LOOK_BACK = 10_000
# The writer splits what is larger than 1 MiB; what is larger than this is none of its messages.
LARGEST_MESSAGE = 4 * 1024 * 1024


class AnalysisReader:
    """`board` holds what was read; `skipped` counts messages that are no answers, `complaint` is about the last one."""

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        self.board = Board()
        self.skipped = 0
        self.complaint: str | None = None
        self._broker = broker
        self._clock = clock
        self._reading = asyncio.Lock()
        self._stream: Stream | None = None  # of which the board is
        self._next = 0  # the offset to go on from

    @property
    def exists(self) -> bool:
        """Whether there is such a stream."""
        return self._broker.stream(STREAM_NAME) is not None

    @property
    def behind(self) -> int:
        """Messages that are there and were not read yet."""
        return max(0, self._stream.readable - self._next) if self._stream is not None else 0

    async def catch_up(self, patience: float) -> None:
        """Read what is there, for at most so many seconds; never raises for what it reads."""
        deadline = self._clock() + patience
        async with self._reading:
            self._begin_anew_if_other()
            while self.behind and self._clock() < deadline:
                await self._read_page()
                self._begin_anew_if_other()

    def _begin_anew_if_other(self) -> None:
        stream = self._broker.stream(STREAM_NAME)
        if stream is self._stream:
            return
        self._stream = stream
        self.board = Board()
        self.skipped = 0
        self.complaint = None
        self._next = max(0, stream.readable - LOOK_BACK) if stream is not None else 0

    async def _read_page(self) -> None:
        stream = self._stream
        assert stream is not None
        page: asyncio.Future[tuple[int, list[Message]]] = asyncio.get_running_loop().create_future()
        stream.read(self._next, lambda *found: None if page.done() else page.set_result(found))
        first, messages = await page
        answers, complaints = await asyncio.to_thread(_read_answers, messages)
        self.board.add(answers)
        self._next = first + len(messages)
        self._count(complaints)

    def _count(self, complaints: Sequence[str]) -> None:
        if complaints and not self.skipped:
            log.warning("a message of %s is no answer of the analysis: %s", STREAM_NAME, complaints[0])
        if complaints:
            self.skipped += len(complaints)
            self.complaint = complaints[-1]


def _read_answers(messages: Sequence[Message]) -> tuple[list[Answer], list[str]]:
    """In a thread: what the messages say, and what is wrong with those that say nothing."""
    answers: list[Answer] = []
    complaints: list[str] = []
    for message in messages:
        if len(message.body) > LARGEST_MESSAGE:
            complaints.append(f"it has {len(message.body)} bytes, and {LARGEST_MESSAGE} are the most")
            continue
        try:
            answers.append(read_answer(message.body))
        except NoAnswer as unfit:
            complaints.append(str(unfit))
    return answers, complaints
