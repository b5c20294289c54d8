"""Ports: the interfaces through which the core reaches storage, the network and tracing.

The core decides; stores persist (`MessageStore`, `StreamStore`, `Catalog`, `CommitLog`), the `Outbox` sends, and the
`EventSink` observes. Methods never block, and never raise because of what a peer sent. Compiled (ports.pxd), because
`Outbox` and `MessageStore` are called once per message.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """The output of one connection: frames are buffered, and written in order at the end of the turn.

    `is_congested`: the peer reads too slowly. Consumers are then `parked` and receive nothing until they are woken.
    """

    __slots__ = ("is_congested", "parked")

    def __init__(self) -> None:
        self.is_congested = False
        self.parked: dict[Any, None] = {}

    def deliver(
        self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, message: "Message"
    ) -> None:
        """Send basic.deliver; `consumer_tag` is a wire short string."""
        raise NotImplementedError

    def get_ok(self, channel: int, delivery_tag: int, redelivered: bool, message: "Message", remaining: int) -> None:
        """Send basic.get-ok."""
        raise NotImplementedError

    def return_message(self, channel: int, reply_code: int, reply_text: str, message: "Message") -> None:
        """Send basic.return."""
        raise NotImplementedError

    def confirm(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """Send basic.ack to a publisher."""
        raise NotImplementedError

    def nack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """Send basic.nack to a publisher."""
        raise NotImplementedError

    def cancel_consumer(self, channel: int, consumer_tag: str) -> None:
        """Send basic.cancel: the queue of this consumer is gone."""
        raise NotImplementedError

    def close_channel(self, channel: int, refusal: "BrokerError", cause: str) -> None:
        """Send channel.close with this error and close the Channel; `cause` is logged."""
        raise NotImplementedError


# Durability levels: what the confirm of a message waits for. Each has the bits of those below: `|` is the higher one.
NOTHING = 0b00
WRITTEN = 0b01  # written to the file
SYNCED = 0b11  # synced to disk


class PageSizes:
    """How much of a queue stays in memory, in bytes of memory (`Message.footprint`: some 400 for a 100 B body).

    A queue above its memory limit is paged out. The limit is between `small_window` and `window`, and shrinks as other
    queues use up the budget (`Backlog._memory_limit`).
    """

    __slots__ = ("budget", "page", "read_below", "resident", "small_window", "window")

    def __init__(self, window: int = 32 << 20, page: int = 768 << 10, budget: int = 96 << 20) -> None:
        self.window = window
        self.resident = min(4 << 20, window // 2)  # the head of a paged-out queue that stays in memory
        self.read_below = max(1, self.resident)  # the next page is read when less than this is left
        self.page = page  # the tail of a paged-out queue is written each time it grows by this
        self.budget = budget  # for all queues, unacked messages included
        self.small_window = min(256 << 10, window // 32)


class MessageStore:
    """Stores messages of one queue on disk: persistent messages of a durable queue, and what does not fit in memory.

    `append` and `forget` are part of the open epoch of the commit log. Paged-out messages return page by page, in
    order, through `Backlog.add_page`. The confirm of a stored message waits for `durability_level`. `is_reading`:
    a page was requested and has not arrived. `last_position` is the highest position on disk. Messages up to
    `last_read` are in memory; paged-out messages have higher positions.
    """

    __slots__ = ("durability_level", "is_reading", "last_position", "last_read", "sizes")

    def __init__(self, durability_level: int = NOTHING, sizes: PageSizes | None = None) -> None:
        self.durability_level = durability_level
        self.sizes = sizes  # None: nothing is paged out
        self.is_reading = False
        self.last_position = -1
        self.last_read = -1

    def open(self, backlog: "Backlog") -> "Recovered":
        """Return the stored messages; called once, before the first append. Pages go to this backlog."""
        return Recovered([])

    def append(self, entry: "QueuedMessage") -> None:
        """Store a persistent message, and set the epoch of the entry."""
        raise NotImplementedError

    def forget(self, entry: "QueuedMessage") -> None:
        """Remove a stored message that was settled or dropped."""
        raise NotImplementedError

    def save_attempts(self, entry: "QueuedMessage") -> None:
        """Store the delivery count of a message that was requeued."""

    def page_out(self, entries: "list[QueuedMessage]") -> None:
        """Move these messages, which are in order, out of memory.

        Those after `last_position` are written; those before it are already on disk.
        """
        raise NotImplementedError

    def page_in(self) -> None:
        """Start reading the next page."""
        raise NotImplementedError

    def forget_pages(self) -> None:
        """Remove all messages that are only on disk."""
        raise NotImplementedError

    def forget_first_pages(self, should_forget: "Callable[[int, int, int], bool]") -> tuple[int, int]:
        """Remove whole pages that are only on disk, in order, while `should_forget` returns True, without reading them.

        Its arguments are the number of messages left in the page, the bytes of their bodies, and the time at which the
        last of them expires: 0 if one never does, possibly too late if messages were removed. Stop at a page of unknown
        size. Return the number of messages removed and the bytes of their bodies; the caller updates its counters.
        """
        return 0, 0

    def forget_paged(self, position: int, size: int) -> bool:
        """Remove one message that is only on disk; False if it is in memory or was removed. `size` is its body's.

        The result is undefined for a position that never held a message.
        """
        return False

    def take_paged(self, position: int, size: int) -> bool:
        """Regard one message that is only on disk as in memory; False if it is not only on disk. `size` as above."""
        return False

    def has_paged(self, position: int) -> bool:
        """Return True if the message at this position is only on disk. It must have held one."""
        return False

    def return_paged(self, entries: "list[QueuedMessage]") -> None:
        """Regard messages after `last_read` that are in memory as only on disk again."""
        raise NotImplementedError

    def fetch(self, positions: list[int], receive: "Callable[[list[QueuedMessage]], None]") -> None:
        """Read messages that are only on disk, at ascending positions; they stay there until `forget_paged`.

        Call `receive` once, later, on the loop, with the messages found, unless the queue is deleted first. Some may
        have been removed or paged in by then: `forget_paged` returns False for them. Reads of other pages continue
        meanwhile. Messages in a damaged page are removed from the backlog (`Backlog.add_page`).
        """
        receive([])

    def read_expiries(self, first: int, receive: "Callable[[list[tuple[int, int, int]]], None]") -> None:
        """Read the expiry times in the page that holds position `first`.

        Call `receive` as `fetch` does, with (position, expires_ms, body size) of each message left that expires. After
        a compaction the page may include messages of neighbouring pages.
        """
        receive([])

    def read_page(self, position: int, receive: "Callable[[list[QueuedMessage], int, int], None]") -> None:
        """Read the first page with messages that are only on disk at this position or later; they stay there.

        Call `receive` once, later, on the loop, unless the queue is deleted first, with these messages, the last
        position of the page (-1 if there is none), and how many messages a damaged page has lost. Nothing changes: a
        damaged page is only skipped.
        """
        receive([], -1, 0)

    def delete(self) -> None:
        """Remove everything: the queue was deleted."""
        raise NotImplementedError


class Recovered:
    """The initial contents of a backlog: `paged` messages only on disk, followed by `entries` in memory.

    `paged_bytes` is the size of the bodies on disk. `expiring` lists the pages on disk with messages that expire: the
    earliest expiry time, and the page's first position.
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
    """The log of all durable changes, in epochs. `work` counts the records logged.

    All epochs up to `written` are in their file, all up to `durable` are on disk. Replies such as declare-ok and
    commit-ok wait for `reply_level`: WRITTEN or SYNCED. `is_committing`: the committer has an epoch in progress.
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
        self.turn = Turn()  # replaced by the broker's in `Storage.begin`
        self.work = 0
        self.written = 0
        self.durable = 0
        self.on_written: Callable[[], None] | None = None  # called when only `written` has grown
        self.on_durable: Callable[[], None] | None = None  # called when `durable` has grown
        # Called before an epoch is closed, so that events can be logged with their cause. A turn may span epochs.
        self.on_epoch_end: Callable[[], None] | None = None
        # Called before old epochs are trimmed: events that no other file has must be logged again.
        self.on_trim: Callable[[], None] | None = None
        self.is_committing = False
        self.reply_level = reply_level

    def end_turn(self) -> int:
        """Close the open epoch. Return its number, which only grows, or 0 if there is nothing to wait for."""
        raise NotImplementedError

    def advance(self, written: int, durable: int) -> None:
        """Record which epochs are written and which are durable, and notify."""
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
        """Mark the end of a transaction in the open epoch."""

    def put_events(self, first: int, last: int, rows: bytes) -> None:
        """Log rows of events, numbered `first` to `last`, with the changes that caused them; keep until discarded.

        Rows logged again replace the earlier ones. The encoding is the event log's own. In-memory logs ignore this.
        """

    def discard_events(self, up_to: int) -> None:
        """Discard all rows up to this number."""

    def flush(self) -> None:
        """Sync soon: a caller waits until everything logged so far is on disk."""


class SeenStore:
    """Stores the ids that one queue, stream or exchange has seen, each with a number (core/deduplication.py).

    An id is logged in the open epoch of the commit log, so in the same epoch as its message.
    """

    __slots__ = ("durability_level",)

    def __init__(self, durability_level: int = NOTHING) -> None:
        self.durability_level = durability_level  # what the confirm of a message with a stored id waits for

    def attach(self, ids: "SeenIds") -> None:
        """Set the ids that are remembered; the store reads them, for example to compact its file."""
        raise NotImplementedError

    def save(self, id: bytes, number: int) -> None:
        """Store an id of 16 bytes; saving it again makes it the newest."""
        raise NotImplementedError

    def ids_removed(self) -> None:
        """Notify that stored ids were removed together with their messages, which the message store has logged."""

    def recover(self) -> "Iterable[tuple[bytes, int]]":
        """Return the stored ids, oldest first; called once, before the first `save`."""
        raise NotImplementedError

    def delete(self) -> None:
        """Remove everything: the queue or exchange was deleted."""
        raise NotImplementedError


class Catalog:
    """Stores definitions: virtual hosts, policies, and durable exchanges, queues and bindings.

    A definition is a plain dictionary (`core/definitions.py`). Changes are part of the open epoch.
    """

    __slots__ = ()

    def save(self, kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        raise NotImplementedError

    def delete(self, kind: str, key: tuple[str, ...]) -> None:
        raise NotImplementedError

    def load(self, kind: str) -> "Iterable[dict[str, Any]]":
        """Return all definitions of one kind, in the order they were saved."""
        raise NotImplementedError


class Storage:
    """The storage of one broker: its catalog, its commit log, and a store per durable queue."""

    __slots__ = ()

    catalog: Catalog
    log: CommitLog

    def begin(self, turn: Turn, timers: "Timers") -> None:
        """Attach the broker's turn and timers; the broker calls this first."""
        self.log.turn = turn

    def count_memory_in(self, stats: "Stats") -> None:
        """Count messages that wait to be written in `Stats.held_bytes`: the memory alarm must include them."""

    def pending_bytes(self) -> int:
        """Return the part of `Stats.held_bytes` that waits to be written."""
        return 0

    def message_store(self, vhost: str, queue: str, options: "QueueOptions", level: int = 0) -> MessageStore | None:
        """Return the store of a queue, or of one of its priorities (`level`); None for an in-memory queue.

        Positions are unique over all levels. The first call for a level of a durable queue registers it.
        """
        raise NotImplementedError

    def stored_levels(self, vhost: str, queue: str) -> list[int]:
        """Return the levels above 0 of a durable queue that have a store, ascending; recovery opens each."""
        return []

    def idle_queues(self) -> "Mapping[str, list[str]]":
        """Return the names of durable queues without arguments and messages, by virtual host; called once, at a start.

        `Catalog.load` leaves them out. A storage may return none.
        """
        return {}

    def stream_store(self, vhost: str, queue: str, options: "QueueOptions") -> "StreamStore":
        """Return the store of a stream."""
        raise NotImplementedError

    def seen_store(self, kind: str, vhost: str, name: str, durability_level: int | None = None) -> "SeenStore | None":
        """Return the store of the ids that a durable "queue" or "exchange" has seen; None: keep them in memory.

        Confirms wait for `durability_level`; None: for the level that replies wait for.
        """
        raise NotImplementedError

    def recovered_events(self) -> "tuple[int, list[tuple[int, int, bytes]]]":
        """Return the highest row number in `CommitLog`, and the rows that may be stored nowhere else; called once."""
        return 0, []


class RouteSampler:
    """State of the event sink for one route, opaque to the core. This one skips nothing."""

    __slots__ = ()

    def skips(self, header: bytes) -> bool:
        """Return True if the event sink need not see this publish; called once per publish."""
        return False


NO_SAMPLER = RouteSampler()  # of a route that is new to the event sink


class EventSink:
    """Receives events. This one ignores them.

    The sink decides at publish whether a message is traced, and sets `Message.uid`. Nothing is reported of other
    messages, so each step costs them one test of an integer. Kinds and reasons: `events/schema.py`.

    `is_watching`: a message may be traced, or the firehose is open: report each publish that the route's sampler does
    not skip. `has_events`: there were events since the last `end_turn`. `routed_uid`: the message whose `published`
    event already says that it was routed.
    """

    __slots__ = ("has_events", "is_watching", "routed_uid")

    def __init__(self) -> None:
        self.is_watching = False
        self.has_events = False
        self.routed_uid = 0

    def published(self, channel: "Channel", route: "Route", message: "Message", queues: "list[Queue]") -> None:
        """Report a publish and its queues; decides whether the message is traced."""

    def message_event(self, kind: int, message: "Message", channel: "Channel", reason: int) -> None:
        """Report an event of a traced message that is not of one queue: routed, unroutable, returned, confirmed, ..."""

    def enqueued(self, message: "Message", queue: "Queue", depth: int) -> None:
        """Report that a traced message was enqueued, and is one of `depth` now; sets its `enqueue_time`."""

    def advance_clock(self) -> None:
        """Take the current time for what the broker itself publishes, instead of the time of the client's publish.

        No two calls take the same time, so that the enqueue time tells two copies in one queue apart.
        """

    def queue_event(self, kind: int, entry: "QueuedMessage", queue: "Queue", actor: object, reason: int) -> None:
        """Report an event of a traced message in one queue: delivered, acked, requeued, dropped, ...

        `actor` is the consumer or the channel that caused it, None for the broker itself.
        """

    def detailed_event(
        self,
        kind: int,
        entry: "QueuedMessage",
        queue: "Queue",
        actor: object,
        reason: int,
        due_ms: int,
        retry_max: int,
        note: bytes | None,
    ) -> None:
        """Report what `queue_event` does, with the time until which the message waits, or a note; null: 0 or None."""

    def direct_delivery(self, message: "Message", queue: "Queue", consumer: "Consumer") -> None:
        """Report that a traced message went straight to a consumer without acks, past an empty queue."""

    def firehose_delivery(self, entry: "QueuedMessage", queue: "Queue", actor: object) -> None:
        """Report a delivery, traced or not, from a queue whose virtual host has the firehose open."""

    def resource_event(self, kind: int, vhost: str, fields: "dict[str, Any]") -> None:
        """Report that a connection, channel, consumer, queue or exchange was opened, closed, declared or deleted.

        Also events of messages that are not at hand: removed on disk, or named by a note.
        """

    def end_turn(self) -> None:
        """The turn ends; its epoch is still open."""


class OffsetStore:
    """Stores the offsets of the tracked consumers of one stream (core/stream_offsets.py).

    The offset of a consumer tag is the position of its first unsettled message. Changes are part of the open epoch.
    """

    __slots__ = ()

    def open(self) -> dict[str, int]:
        """Return the stored offsets, most recently used tag last; called before the first `save`.

        The caller keeps this dictionary up to date, and the store reads it.
        """
        raise NotImplementedError

    def save(self, tag: str, position: int) -> None:
        raise NotImplementedError

    def forget(self, tag: str) -> None:
        raise NotImplementedError

    def delete(self) -> None:
        """Remove everything: the stream was deleted."""
        raise NotImplementedError


class StreamStore:
    """Stores the messages of one stream until retention, by size and age, removes them.

    It notifies the stream of what was removed (`Stream.forget_before`) and, unless `durability_level` is NOTHING, of
    what consumers may read (`Stream.make_readable`). Positions are offsets: they start at 0 and have no gaps.
    `first_position` is the first one stored; `offsets` stores the offsets of tracked consumers.
    """

    __slots__ = ("durability_level", "first_position", "offsets")

    def __init__(self, offsets: OffsetStore, durability_level: int = NOTHING) -> None:
        self.offsets = offsets
        self.durability_level = durability_level
        self.first_position = 0

    def open(self, stream: "Stream") -> int:
        """Return the next position; called once, before the first append. Notifications go to this stream."""
        raise NotImplementedError

    def append(self, entry: "QueuedMessage") -> None:
        """Store a message in the open epoch, and set the epoch of the entry."""
        raise NotImplementedError

    def delete(self) -> None:
        """Remove everything: the stream was deleted."""
        raise NotImplementedError

    def apply(self, options: "QueueOptions") -> None:
        """Apply the retention limits of these options."""
        raise NotImplementedError

    def read(
        self,
        position: int,
        receive: "Callable[[int, list[Message]], None]",
        needles: "tuple[bytes, ...] | None" = None,
    ) -> None:
        """Read the page that holds this position, or the next page: pass on its first position and its messages.

        The messages already carry their offset header. `receive` is called immediately or later, on the loop. It gets
        no messages at the end of the stream, or if there are none before the position it gets: pages that contain none
        of the `needles` as bytes may be skipped.
        """
        raise NotImplementedError

    def find_time(self, time_ms: int, receive: "Callable[[int], None]") -> None:
        """Find the position from which to read everything appended at that time or later, up to a page too early.

        `receive` is called immediately or later, on the loop; with the next position if everything is older.
        """
        raise NotImplementedError

    def last_append_ms(self) -> int:
        """Return the time of the last append; 0 if unknown."""
        return 0

    def append_unlogged(self, entry: "QueuedMessage", done: "Callable[[], None]") -> None:
        """Store a message without the commit log: a crash before it is written loses it.

        `done` is called on the loop once it is written and readable.
        """
        self.append(entry)
        done()

    def read_backwards(self) -> "Iterator[Message]":
        """Iterate over the messages, last one first. Blocks: for recovery only."""
        raise NotImplementedError
