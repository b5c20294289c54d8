"""What the core asks of the world, and nothing else.

The core decides; these keep (`MessageStore`, `Catalog`, `CommitLog`), talk (`Outbox`) and watch (`EventSink`).
Methods never block and never raise for the peer's sake. Compiled, because `Outbox` and `MessageStore` are called once
per message (ports.pxd).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from warrenmq.core.turn import Turn

if TYPE_CHECKING:
    from warrenmq.core.backlog import Backlog
    from warrenmq.core.channel import Channel
    from warrenmq.core.consumer import Consumer
    from warrenmq.core.deduplication import SeenIds
    from warrenmq.core.errors import BrokerError
    from warrenmq.core.exchange import Route
    from warrenmq.core.message import Message, QueuedMessage
    from warrenmq.core.options import QueueOptions
    from warrenmq.core.queue import Queue
    from warrenmq.core.stats import Stats
    from warrenmq.core.stream import Stream
    from warrenmq.core.timers import Timers


class Outbox:
    """One connection's way out. Everything gathered in a turn is written at its end, in the order of the calls.

    `is_congested` says that the peer reads too slowly: consumers stop getting messages until `parked` are revived.
    """

    __slots__ = ("is_congested", "parked")

    def __init__(self) -> None:
        self.is_congested = False
        self.parked: dict[Any, None] = {}

    def deliver(
        self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, message: "Message"
    ) -> None:
        """basic.deliver; `consumer_tag` is a wire short string."""
        raise NotImplementedError

    def get_ok(self, channel: int, delivery_tag: int, redelivered: bool, message: "Message", remaining: int) -> None:
        """basic.get-ok."""
        raise NotImplementedError

    def return_message(self, channel: int, reply_code: int, reply_text: str, message: "Message") -> None:
        """basic.return."""
        raise NotImplementedError

    def confirm(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """basic.ack to a publisher."""
        raise NotImplementedError

    def nack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """basic.nack to a publisher."""
        raise NotImplementedError

    def cancel_consumer(self, channel: int, consumer_tag: str) -> None:
        """basic.cancel: the queue of this consumer is gone."""
        raise NotImplementedError

    def close_channel(self, channel: int, refusal: "BrokerError", cause: str) -> None:
        """Close the channel with channel.close and these words, and its Channel, too; `cause` is for the log."""
        raise NotImplementedError


# What the confirm of a message waits for.
NOTHING = 0
WRITTEN = 1  # it is in the operating system's hands
SYNCED = 2  # it is on the disk


class PageSizes:
    """How much of a line stays in memory, in bytes of memory (`Message.footprint`; some 400 for a body of 100).

    A line that is longer than its share is paged out: at most `window`, less when others take much of the budget
    (`Backlog._share`), at least `small_window`.
    """

    __slots__ = ("budget", "kept", "page", "read_below", "small_window", "window")

    def __init__(self, window: int = 32 << 20, page: int = 768 << 10, budget: int = 96 << 20) -> None:
        self.window = window
        self.kept = min(4 << 20, window // 2)  # of a line that is paged out this much stays, at its head
        self.read_below = max(1, self.kept)  # the next page is asked for when there is less than this left
        self.page = page  # the tail of a line that is paged out follows each time it has grown by this
        self.budget = budget  # for all lines, and what is unacked
        self.small_window = min(256 << 10, window // 32)


class MessageStore:
    """Keeps messages of one queue outside of memory: the persistent ones of a durable queue, and what does not fit.

    `append` and `forget` belong to the open epoch of the commit log. What is paged out comes back page by page, in
    order, through `Backlog.add_page`. The confirm of a stored message waits for `durability_level`. `is_reading`:
    a page was requested and has not arrived yet. `last_position` is the last one on disk; everything up to `last_read`
    is in memory, and what is paged out stands behind it.
    """

    __slots__ = ("durability_level", "is_reading", "last_position", "last_read", "sizes")

    def __init__(self, durability_level: int = NOTHING, sizes: PageSizes | None = None) -> None:
        self.durability_level = durability_level
        self.sizes = sizes  # None: nothing is paged out
        self.is_reading = False
        self.last_position = -1
        self.last_read = -1

    def open(self, backlog: "Backlog") -> "Recovered":
        """Return what was kept and not forgotten; once, before the first append. Pages go to this backlog."""
        return Recovered([])

    def append(self, entry: "QueuedMessage") -> None:
        """Keep a persistent message, and note its epoch in the entry."""
        raise NotImplementedError

    def forget(self, entry: "QueuedMessage") -> None:
        """Forget a stored message that was settled or dropped."""
        raise NotImplementedError

    def save_attempts(self, entry: "QueuedMessage") -> None:
        """Keep how often a stored message was delivered: it came back."""

    def page_out(self, entries: "list[QueuedMessage]") -> None:
        """Let these messages leave memory, in order.

        Either they stand behind `last_position`, and are written, or before it, and are on disk already.
        """
        raise NotImplementedError

    def page_in(self) -> None:
        """Start reading the next page."""
        raise NotImplementedError

    def forget_pages(self) -> None:
        """Forget all messages that are on disk only."""
        raise NotImplementedError

    def forget_first_pages(self, is_due: "Callable[[int, int, int], bool]") -> tuple[int, int]:
        """Forget whole pages of what is on disk only, the first one first, while `is_due` returns True for them.

        `is_due` is called with the number of living messages of a page, the bytes of their bodies, and the time at
        which the last of them expires, 0 if one of them never does; that may be too late where messages were deleted.
        Nothing is read. Stops at a page whose bytes are not known. Return the number of messages forgotten, and the
        bytes of their bodies: the caller counts them.
        """
        return 0, 0

    def forget_paged(self, position: int, size: int) -> bool:
        """Forget one message that is on disk only, with a body of `size` bytes; False if it is not, or not alive.

        The position is that of a message: of one that was never there the answer means nothing.
        """
        return False

    def fetch(self, positions: list[int], receive: "Callable[[list[QueuedMessage]], None]") -> None:
        """Read these messages, which are on disk only and ascending; they stay there until `forget_paged`.

        Calls `receive` once, later, on the loop, with those that were found, unless the queue is deleted before. Some
        may be gone by then, or in memory: `forget_paged` then returns False. A read of other pages goes on meanwhile.
        Messages of a damaged page are taken from the backlog (`Backlog.add_page`).
        """
        receive([])

    def read_expiries(self, first: int, receive: "Callable[[list[tuple[int, int, int]]], None]") -> None:
        """Read when the messages of the page that holds position `first` expire, of those that do.

        Calls `receive` as `fetch` does, with (position, expires_ms, body size) of the living ones. Where a compaction
        has joined pages, others of them may be among these.
        """
        receive([])

    def delete(self) -> None:
        """Remove everything: the queue is gone."""
        raise NotImplementedError


class Recovered:
    """What a backlog begins with: `paged` messages on disk only, and behind them `entries` in memory.

    `paged_bytes` are the bodies of those on disk. `expiring` are the pages on disk in which a message expires: when the
    first of it does, and the page's first position.
    """

    __slots__ = ("entries", "expiring", "next_position", "paged", "paged_bytes")

    def __init__(
        self,
        entries: "list[QueuedMessage]",
        paged: int = 0,
        next_position: int = 0,
        paged_bytes: int = 0,
        expiring: "list[tuple[int, int]] | None" = None,
    ) -> None:
        self.entries = entries
        self.paged = paged
        self.next_position = next_position
        self.paged_bytes = paged_bytes
        self.expiring = expiring or []


class CommitLog:
    """Decides when a turn's work is safe. `work` grows with everything durable that is said.

    All epochs up to `written` are in the operating system's hands, all up to `durable` are on the disk, and an answer
    such as declare-ok or commit-ok waits for `reply_level`: WRITTEN or SYNCED. `is_committing`: the committer has an
    epoch that it has not reported yet.
    """

    __slots__ = (
        "durable",
        "is_committing",
        "on_durable",
        "on_epoch_end",
        "on_trim",
        "on_written",
        "reply_level",
        "turn",
        "work",
        "written",
    )

    def __init__(self, reply_level: int = SYNCED) -> None:
        self.turn = Turn()  # until `Storage.begin` brings the broker's
        self.work = 0
        self.written = 0
        self.durable = 0
        # Called after `written`, or `durable` and `written`, have grown.
        self.on_written: Callable[[], None] | None = None
        self.on_durable: Callable[[], None] | None = None
        # Called before an epoch is closed: events of what it holds may go with it. Turns may be longer than epochs.
        self.on_epoch_end: Callable[[], None] | None = None
        # Called before old epochs are let go: what they alone have of events is to be said again.
        self.on_trim: Callable[[], None] | None = None
        self.is_committing = False
        self.reply_level = reply_level

    def end_turn(self) -> int:
        """Close the open epoch. Return its number, or 0 if there is nothing to wait for; numbers only grow."""
        raise NotImplementedError

    def advance(self, written: int, durable: int) -> None:
        """All epochs up to these are written, and durable."""
        has_synced = durable > self.durable
        has_written = written > self.written
        if has_written:
            self.written = written
        if has_synced:
            self.durable = durable
            if self.on_durable is not None:
                self.on_durable()
        elif has_written and self.on_written is not None:
            self.on_written()

    def end_transaction(self) -> None:
        """All of a transaction was said; its epoch is still open."""

    def put_events(self, first: int, last: int, rows: bytes) -> None:
        """Keep rows of the event log with the turn that they are of, until `discard_events`: those with these numbers.

        Bytes that only the event log reads. What is said again takes the place of what was said before. Whoever has
        nothing to lose keeps nothing.
        """

    def discard_events(self, up_to: int) -> None:
        """All rows up to this number were given up: they need not be kept any more."""

    def flush(self) -> None:
        """Somebody waits until all that was said so far is on the disk: see to it soon."""


class SeenStore:
    """Keeps the ids that one queue, stream or exchange has seen, each with a number (core/deduplication.py).

    `keep` belongs to the open epoch of the commit log: to the same as the message, if it is said in the same call.
    """

    __slots__ = ("durability_level",)

    def __init__(self, durability_level: int = NOTHING) -> None:
        self.durability_level = durability_level  # what the confirm of a message waits for whose id is kept

    def attach(self, ids: "SeenIds") -> None:
        """These are all ids that are remembered."""
        raise NotImplementedError

    def save(self, id: bytes, number: int) -> None:
        """Keep 16 bytes; said again they are as new as if they were said for the first time."""
        raise NotImplementedError

    def ids_removed(self) -> None:
        """Some that are kept were forgotten with their messages, about which the message store has heard."""

    def recover(self) -> "Iterable[tuple[bytes, int]]":
        """What was kept, oldest first; once, before the first `keep`."""
        raise NotImplementedError

    def delete(self) -> None:
        """Nobody asks for them any more."""
        raise NotImplementedError


class Catalog:
    """Keeps definitions: virtual hosts and their durable exchanges, queues and bindings.

    A definition is a plain dictionary as `core/definitions.py` builds it. Each call belongs to the open epoch.
    """

    __slots__ = ()

    def save(self, kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        raise NotImplementedError

    def delete(self, kind: str, key: tuple[str, ...]) -> None:
        raise NotImplementedError

    def load(self, kind: str) -> "Iterable[dict[str, Any]]":
        """All of one kind, in the order they were saved."""
        raise NotImplementedError


class Storage:
    """The storage of one broker: its catalog, its log, and a message store per durable queue."""

    __slots__ = ()

    catalog: Catalog
    log: CommitLog

    def begin(self, turn: Turn, timers: "Timers") -> None:
        """Called by the broker before it asks for anything: the turn has the time of all that is to come."""
        self.log.turn = turn

    def count_memory_in(self, stats: "Stats") -> None:
        """Add what is on its way to the disk to the bytes held in memory: the memory alarm must see it."""

    def pending_bytes(self) -> int:
        """Return the part of the bytes held in memory that `count_in` is about."""
        return 0

    def message_store(self, vhost: str, queue: str, options: "QueueOptions", level: int = 0) -> MessageStore | None:
        """The store of a queue, or of one of its priorities (`level`); None for one that lives in memory alone.

        Positions are unique over all levels. A level of a durable queue is known from the first call on.
        """
        raise NotImplementedError

    def stored_levels(self, vhost: str, queue: str) -> list[int]:
        """The levels above 0 of a durable queue that have a store, ascending: a start asks for the store of each."""
        return []

    def stream_store(self, vhost: str, queue: str, options: "QueueOptions") -> "StreamStore":
        """The store of a stream."""
        raise NotImplementedError

    def seen_store(self, kind: str, vhost: str, name: str, durability_level: int | None = None) -> "SeenStore | None":
        """Where the ids are kept that a durable "queue" or "exchange" has seen.

        A confirm waits for them as for what is in that queue (`durability_level`), or else as an answer would.
        """
        raise NotImplementedError

    def recovered_events(self) -> "tuple[int, list[tuple[int, int, bytes]]]":
        """The highest number of a row that `CommitLog` was told of, and what it was given that may be nowhere else.

        Once.
        """
        return 0, []


class RouteSampler:
    """State that an event sink keeps for one route, opaque to the core. This one skips nothing."""

    __slots__ = ()

    def skips(self, header: bytes) -> bool:
        """Return True if the event sink need not see this publish; each publish on the route asks once."""
        return False


NO_SAMPLER = RouteSampler()  # of a route that the event sink has not seen yet


class EventSink:
    """Hears what happens; this one keeps nothing.

    A message is traced or not: that is decided when it is published, and noted in `Message.uid`. Of one that is not
    nothing is told, so that it pays for a test of a number at each step. Kinds and reasons are those of
    `events/schema.py`.

    `is_watching`: some message may be traced, or the firehose is open: the sink must see every publish that its sampler
    for the route does not skip.
    `has_events`: something was told since the last `end_turn`.
    `routed`: the uid of the message that was said to be routed when it was published; that need not be told again.
    """

    __slots__ = ("has_events", "is_watching", "routed_uid")

    def __init__(self) -> None:
        self.is_watching = False
        self.has_events = False
        self.routed_uid = 0

    def published(self, channel: "Channel", route: "Route", message: "Message", queues: "list[Queue]") -> None:
        """A message came in, and goes to these queues: decide whether it is traced."""

    def message_event(self, kind: int, message: "Message", channel: "Channel", reason: int) -> None:
        """Something happened to a traced message as a whole: routed, unroutable, returned, confirmed, ..."""

    def enqueued(self, message: "Message", queue: "Queue", depth: int) -> None:
        """A traced message joins a queue, and with it so many wait there; notes the time in it."""

    def advance_clock(self) -> None:
        """The broker itself is about to put a traced message into queues: it joins them now, not when it was published.

        No two calls have the same time, so that two copies in one queue can be told apart by when they came.
        """

    def queue_event(self, kind: int, entry: "QueuedMessage", queue: "Queue", who: object, reason: int) -> None:
        """Something happened to a traced message in one queue: delivered, acked, requeued, dropped, ...

        `who` is the consumer or the channel that it has to do with, None if there is none.
        """

    def direct_delivery(self, message: "Message", queue: "Queue", consumer: "Consumer") -> None:
        """A traced message came to a queue where none waits, and was delivered and settled by that."""

    def firehose_delivery(self, entry: "QueuedMessage", queue: "Queue", who: object) -> None:
        """A message left a queue that somebody listens to, by the firehose, traced or not."""

    def resource_event(self, kind: int, vhost: str, fields: "dict[str, Any]") -> None:
        """A connection, channel, consumer, queue or exchange was opened, closed, declared or deleted."""

    def end_turn(self) -> None:
        """The turn ends, its epoch is still open."""


class OffsetStore:
    """Keeps how far the tracked consumers of one stream have come (core/stream_offsets.py).

    For each consumer tag that is the position of the first message that it has not dealt with. `keep` and `forget`
    belong to the open epoch.
    """

    __slots__ = ()

    def open(self) -> dict[str, int]:
        """Return what is kept, the tag that was used last at the end; before the first `keep`.

        The caller changes the dictionary with everything that it says; the store reads it.
        """
        raise NotImplementedError

    def save(self, tag: str, position: int) -> None:
        raise NotImplementedError

    def forget(self, tag: str) -> None:
        raise NotImplementedError

    def delete(self) -> None:
        """The stream is gone."""
        raise NotImplementedError


class StreamStore:
    """Keeps all messages of one stream, until its limits of size and age remove them.

    It notifies the stream of what was removed (`Stream.forget_before`) and, unless `durability_level` is NOTHING, of
    what readers may have (`Stream.make_readable`). Positions are offsets: they begin with 0, and none is left out.
    `first_position` is the first one that is still kept, `offsets` tells how far tracked consumers have come.
    """

    __slots__ = ("durability_level", "first_position", "offsets")

    def __init__(self, offsets: OffsetStore, durability_level: int = NOTHING) -> None:
        self.offsets = offsets
        self.durability_level = durability_level
        self.first_position = 0

    def open(self, stream: "Stream") -> int:
        """Return the next position; once, before the first append. Notifications go to this stream."""
        raise NotImplementedError

    def append(self, entry: "QueuedMessage") -> None:
        """Keep a message in the open epoch, and note its epoch in the entry."""
        raise NotImplementedError

    def delete(self) -> None:
        """Remove everything: the stream is gone."""
        raise NotImplementedError

    def apply(self, options: "QueueOptions") -> None:
        """Keep to the limits of these options from now on."""
        raise NotImplementedError

    def read(
        self,
        position: int,
        receive: "Callable[[int, list[Message]], None]",
        needles: "tuple[bytes, ...] | None" = None,
    ) -> None:
        """Give the page that holds this position, or the next one if it is gone: its first position and its messages.

        The messages carry their offsets in a header already. Calls back at once or later, on the loop; with no messages
        where there are none from there on, or none before the position that is given then: a page without any of the
        needles among its bytes may be passed over.
        """
        raise NotImplementedError

    def find_time(self, time_ms: int, receive: "Callable[[int], None]") -> None:
        """Give the position to read from so as to miss nothing of that time or later; it may be a page too early.

        Calls back at once or later, on the loop; with the next position where everything is older.
        """
        raise NotImplementedError

    def last_append_ms(self) -> int:
        """The time of the last append; 0 if it is not known."""
        return 0

    def append_unlogged(self, entry: "QueuedMessage", done: "Callable[[], None]") -> None:
        """Keep a message past the commit log: a crash may take it as long as it is not written.

        Then `done` is called, on the loop, and readers may have it.
        """
        self.append(entry)
        done()

    def read_backwards(self) -> "Iterator[Message]":
        """Its messages, the last first. Blocks: for a start."""
        raise NotImplementedError
