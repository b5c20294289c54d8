"""The recent messages of an x-recent-history exchange: delivered to each queue that is bound to it.

All are in memory, and counted as held messages. Persistent messages of a durable exchange are also stored, as if the
exchange had a queue of its own, and survive a restart. Clients cannot declare the store's name (`name_of_store`); its
definition is that of a queue, so older versions can read the data folder.

Owned by the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import NOTHING, MessageStore
from warrenmq.protocol.properties import headers as decode_headers

if TYPE_CHECKING:
    from warrenmq.core.stats import Stats

LENGTH_ARGUMENT = "x-recent-history-length"
DEFAULT_LENGTH = 20
NO_STORE = "x-recent-history-no-store"
STORE_PREFIX = "warren.history."

_NO_STORE_KEY = NO_STORE.encode()


def name_of_store(exchange: str) -> str:
    """Return the name of the store and the definition of a durable history."""
    return STORE_PREFIX + exchange


class History:
    """The last `length` messages. `next_position` is the next position in the store.

    After a restart some are only on disk until the store has read them (`add_page`); replays wait for that.
    """

    __slots__ = (
        "_entries",
        "_length",
        "_paged",
        "_read",
        "_stats",
        "_store",
        "_waiting",
        "held_bytes",
        "next_position",
    )

    def __init__(self, length: int, stats: Stats, store: MessageStore | None) -> None:
        self._length = length
        self._stats = stats
        self._store = store
        self._entries: deque[QueuedMessage] = deque()
        self._read: list[QueuedMessage] = []  # read from disk, while more pages follow
        self._paged = 0  # not read yet
        self._waiting: list[Callable[[Message], object]] = []
        self.next_position = 0
        self.held_bytes = 0
        if store is not None:
            recovered = store.open(self)  # type: ignore[arg-type]  # stands for a backlog
            self.next_position = recovered.next_position
            self._paged = recovered.paged
            self._entries.extend(recovered.entries)
            for entry in recovered.entries:
                self._hold(entry)
            if self._paged:
                store.page_in()
            else:
                self._trim()

    def add(self, message: Message) -> int:
        """Add the message, unless its header opts out. Return what its confirm waits for."""
        if _is_unwanted(message.header):
            return NOTHING
        entry = QueuedMessage(message, self.next_position)
        self.next_position += 1
        level = NOTHING
        if self._store is not None and message.is_persistent():
            self._store.append(entry)
            level = self._store.durability_level
        self._entries.append(entry)
        self._hold(entry)
        self._trim()
        return level

    def replay(self, receive: Callable[[Message], object]) -> None:
        """Call `receive` with each message, oldest first: now, or when all are in memory."""
        if self._paged:
            self._waiting.append(receive)
            return
        for entry in self._entries:
            receive(_copy(entry.message))

    def delete(self) -> None:
        """The exchange was deleted."""
        for entry in (*self._read, *self._entries):
            self._release(entry)
        self._read.clear()
        self._entries.clear()
        self._waiting.clear()
        if self._store is not None:
            self._store.delete()
            self._store = None

    def _trim(self) -> None:
        while len(self._entries) > self._length:
            entry = self._entries.popleft()
            self._release(entry)
            if entry.epoch != 0 and self._store is not None:
                self._store.forget(entry)

    # -- the interface of a backlog, for the store -------------------------------------------------------------------

    def page_out_tail(self) -> None:
        """Nothing leaves memory."""

    def add_page(self, entries: list[QueuedMessage], lost: int = 0, lost_bytes: int = 0) -> None:
        """Take the next page from the store; `lost` messages could not be read."""
        for entry in entries:
            self._hold(entry)
        self._read += entries
        self._paged -= len(entries) + lost
        if self._paged:
            assert self._store is not None
            self._store.page_in()
            return
        self._entries.extendleft(reversed(self._read))
        self._read = []
        self._trim()
        waiting, self._waiting = self._waiting, []
        for receive in waiting:
            self.replay(receive)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _hold(self, entry: QueuedMessage) -> None:
        """Count a message as held here; memory shared with queues is counted once, as in `Backlog`."""
        message = entry.message
        self.held_bytes += message.footprint()
        self._stats.held_bytes += message.footprint()
        if message.queue_count:
            self._stats.shared_bytes += message.shared_size()
        message.queue_count += 1

    def _release(self, entry: QueuedMessage) -> None:
        message = entry.message
        self.held_bytes -= message.footprint()
        self._stats.held_bytes -= message.footprint()
        message.queue_count -= 1
        if message.queue_count:
            self._stats.shared_bytes -= message.shared_size()


def _is_unwanted(header: bytes) -> bool:
    # Searching for the name is far cheaper than decoding the headers.
    if _NO_STORE_KEY not in header:
        return False
    headers = decode_headers(header)
    return headers is not None and headers.get(NO_STORE) is True


def _copy(message: Message) -> Message:
    """Return the message itself, or a copy if it is traced: its times are those of its first queues."""
    if message.uid == 0:
        return message
    copy = Message(message.address, message.header, message.body)
    copy.uid = message.uid
    copy.publish_time = message.publish_time
    return copy
