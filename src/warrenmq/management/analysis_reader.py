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

from warrenmq.core.broker import DEFAULT_VHOST, Broker
from warrenmq.core.message import Message
from warrenmq.core.ports import StreamStore
from warrenmq.core.stream import Stream
from warrenmq.management.analysis import Answer, Board, NoAnswer, read_answer

log = logging.getLogger("warrenmq.management")

STREAM_NAME = "warren.analysis"
# Who asks for the jobs waits so many seconds; who asks for the rows of one has mostly just asked for the jobs.
PATIENCE = 2.0
SHORT_PATIENCE = 0.2
# So many messages are read again after a restart: with a batch each second, about a quarter of an hour of all jobs.
LOOK_BACK = 10_000
# The writer splits what is larger than 1 MiB; what is larger than this is none of its messages.
LARGEST_MESSAGE = 4 * 1024 * 1024
# A store that is just being deleted never answers: so long is waited before that is looked at.
LOOK_AGAIN = 0.25


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
        return self._find() is not None

    @property
    def behind(self) -> int:
        """Messages that are there and were not read yet."""
        return max(0, self._stream.readable - self._next) if self._stream is not None else 0

    async def catch_up(self, patience: float) -> None:
        """Read what is there, for at most so many seconds; never raises for what it reads."""
        deadline = self._clock() + patience
        async with self._reading:
            self._begin_anew_if_other()
            while self.behind and self._clock() < deadline and not await self._read_page():
                self._begin_anew_if_other()

    def _find(self) -> Stream | None:
        vhost = self._broker.vhosts.get(DEFAULT_VHOST)
        queue = vhost.queues.get(STREAM_NAME) if vhost is not None else None
        return queue if isinstance(queue, Stream) else None

    def _begin_anew_if_other(self) -> None:
        stream = self._find()
        if stream is self._stream:
            return
        self._stream = stream
        self.board = Board()
        self.skipped = 0
        self.complaint = None
        self._next = max(0, stream.readable - LOOK_BACK) if stream is not None else 0

    async def _read_page(self) -> bool:
        """Read on; whether there is nothing to be had just now."""
        stream = self._stream
        assert stream is not None
        found = await _page(stream, self._next)
        if found is None:
            return stream is self._find()
        first, messages = found
        if not messages:
            self._next = max(first, self._next + 1)  # pass over what cannot be read
            return False
        unread = messages[max(0, self._next - first) : stream.readable - first]
        answers, complaints = await asyncio.to_thread(_read_answers, unread)
        if stream is self._stream:
            self.board.add(answers)
            self._next = max(self._next, first) + len(unread)
            self._count(complaints)
        return not unread

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
            complaints.append(f"it has {len(message.body)} octets, and {LARGEST_MESSAGE} are the most")
            continue
        try:
            answers.append(read_answer(message.body))
        except NoAnswer as unfit:
            complaints.append(str(unfit))
    return answers, complaints


async def _page(stream: Stream, offset: int) -> tuple[int, list[Message]] | None:
    """The page that holds this offset, or the next one; None if the stream is deleted meanwhile."""
    store = stream.store
    if not isinstance(store, StreamStore):
        return None
    answer: asyncio.Future[tuple[int, list[Message]]] = asyncio.get_running_loop().create_future()

    def receive(first: int, messages: list[Message]) -> None:
        if not answer.done():
            answer.set_result((first, messages))

    store.read(offset, receive)
    while not answer.done() and not stream.is_deleted:
        await asyncio.wait([answer], timeout=LOOK_AGAIN)
    return answer.result() if answer.done() else None
