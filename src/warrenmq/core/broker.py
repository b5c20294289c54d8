"""The broker: virtual hosts, users, and the end of each turn.

The root object of the core. In each turn of the event loop the server calls into channels and virtual hosts, then
`end_turn` once. Publishes are confirmed there, or when their epoch is durable; replies that confirm something durable
are sent in the same way. After a failure of the log nothing is confirmed or replied to any more.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from warrenmq.core.dead_letter import PendingDeadLetter
from warrenmq.core.errors import NotAllowed
from warrenmq.core.limits import Limits
from warrenmq.core.login_limit import LoginLimit
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN, Catalog, EventSink, Storage
from warrenmq.core.reply_to import ReplyQueue
from warrenmq.core.restore import restore_definitions
from warrenmq.core.stats import Stats
from warrenmq.core.stream import Stream
from warrenmq.core.timers import Timers
from warrenmq.core.turn import Turn
from warrenmq.core.users import Users
from warrenmq.core.vhost import VHost
from warrenmq.core.warning_log import WarningLog

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.connection import Connection

DEFAULT_VHOST = "/"


class Broker:
    """Everything that one node serves.

    `now_ms` is the time during recovery, and until the server sets that of the first turn (`Turn.now_ms`).
    """

    def __init__(
        self, storage: Storage, events: EventSink | None = None, now_ms: int = 0, limits: Limits | None = None
    ) -> None:
        self.storage = storage
        self.limits = limits or Limits()
        self.turn = Turn(now_ms)
        self.timers = Timers()
        self.warning_log = WarningLog(self.turn)
        storage.begin(self.turn, self.timers)
        self.catalog: Catalog = TurnCatalog(self)
        self.events = events or EventSink()
        self.stats = Stats()
        storage.count_memory_in(self.stats)
        storage.log.on_written = self.log_written
        storage.log.on_durable = self.log_synced
        self.users = Users()
        self.login_limit = LoginLimit()
        self.vhosts: dict[str, VHost] = {}
        self.dead_letters: list[PendingDeadLetter] = []  # to be published (core/dead_letter.py)
        self.reply_queues: dict[str, ReplyQueue] = {}  # by address
        self.awaiting_epoch: dict[Channel, None] = {}
        self.awaits_written = False  # a channel or reply waits for an epoch to be written, not synced
        self.pending_replies: dict[object, tuple[int, int, Callable[[], None]]] = {}  # epoch, level, callback
        self.last_epoch = 0
        self.defined_epoch = 0  # the last one with definitions
        self.failure: str | None = None  # why the log failed
        self.on_failure: Callable[[str], None] | None = None
        self.connections: dict[Connection, None] = {}  # those that have opened a virtual host, oldest first
        self.recovery_warnings: list[str] = []  # for the server to log
        restore_definitions(self)
        if not self.vhosts:
            self.add_vhost(DEFAULT_VHOST)

    # -- virtual hosts -----------------------------------------------------------------------------------------------

    def add_vhost(self, name: str) -> VHost:
        """Create a virtual host, or return the existing one."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            vhost = self.vhosts[name] = VHost(self, name)
            self.catalog.save("vhost", (name,), {"name": name})
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with everything in it; the server closes its connections first."""
        vhost = self.vhosts.pop(name)
        for queue in list(vhost.queues.values()):
            vhost.remove_queue(queue)
        for exchange in list(vhost.exchanges.values()):
            vhost.remove_exchange(exchange)
        vhost.policies.delete_all()
        vhost.schedule.delete()
        self.catalog.delete("vhost", (name,))

    def open_vhost(self, name: str, user: str) -> VHost:
        """Return the virtual host for a connection; 530 if it does not exist or the user has no access."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotAllowed(f"vhost {name} not found")
        if not self.users.may_enter(user, name):
            raise NotAllowed(f"access to vhost '{name}' refused for user '{user}'")
        return vhost

    def stream(self, name: str, vhost: str = DEFAULT_VHOST) -> Stream | None:
        """Return the stream of this name; None if there is none, or the queue is of another type."""
        found = self.vhosts.get(vhost)
        queue = found.queues.get(name) if found is not None else None
        return queue if isinstance(queue, Stream) else None

    # -- the turn ----------------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Dispatch due queues, close the epoch, and confirm the turn's publishes, now or when the epoch is durable."""
        if self.failure is not None:
            return
        turn = self.turn
        while turn.due:  # a delivery or drop in one queue may make another one due
            due, turn.due = turn.due, []
            for queue in due:
                queue.dispatch()
        if turn.deferred:
            turn.due, turn.deferred = list(turn.deferred), {}
            turn.begin()
        if turn.cancelled:
            lost, turn.cancelled = turn.cancelled, []
            for consumer in lost:
                connection = consumer.channel.connection
                if connection in turn.pending_replies or connection in self.pending_replies:
                    turn.cancelled.append(consumer)  # delete-ok comes first
                else:
                    consumer.channel.cancel_consumer(consumer)
        if self.events.has_events:
            self.events.end_turn()
        log = self.storage.log
        if turn.pending_replies and any(level == SYNCED for level, _ in turn.pending_replies.values()):
            log.flush()
        epoch = log.end_turn()
        if epoch:
            self.last_epoch = epoch
            if turn.has_defined:
                self.defined_epoch = epoch
        turn.has_defined = False
        if turn.confirming:
            confirming, turn.confirming = turn.confirming, []
            for channel in confirming:
                if channel.is_open:
                    channel.end_turn(epoch)
        if turn.pending_replies:
            pending_replies, turn.pending_replies = turn.pending_replies, {}
            for owner, (level, callback) in pending_replies.items():
                self.pending_replies[owner] = (self.last_epoch, level, callback)
                if level == WRITTEN:
                    self.awaits_written = True
            self._run_durable_callbacks()  # of those with nothing to wait for

    def log_written(self) -> None:
        """More epochs are written (`CommitLog.written`): confirm and reply."""
        if self.failure is None and self.awaits_written:
            self._settle_waiting()

    def log_synced(self) -> None:
        """More epochs are durable (`CommitLog.durable`): confirm and reply."""
        if self.failure is None:
            self._settle_waiting()

    def _settle_waiting(self) -> None:
        log = self.storage.log
        for channel in list(self.awaiting_epoch):
            if channel.confirm_epochs(log.written, log.durable):
                del self.awaiting_epoch[channel]
        if self.pending_replies:
            self._run_durable_callbacks()
        elif not self.awaiting_epoch:
            self.awaits_written = False

    # -- replies that wait for durability -----------------------------------------------------------------------------

    def when_durable(self, owner: object, level: int, callback: Callable[[], None]) -> None:
        """Call back once everything logged so far has reached this durability level.

        One callback per owner. It runs between turns, at the end of this one at the earliest, never during input.
        """
        self.turn.pending_replies[owner] = (level, callback)

    def withdraw(self, owner: object) -> None:
        """Cancel the callback of this owner."""
        self.turn.pending_replies.pop(owner, None)
        self.pending_replies.pop(owner, None)

    def are_definitions_durable(self) -> bool:
        """Return True if all definitions so far have reached the durability level that replies wait for."""
        return not self.turn.has_defined and self._has_reached(self.defined_epoch, self.storage.log.reply_level)

    def _has_reached(self, epoch: int, level: int) -> bool:
        log = self.storage.log
        return level == NOTHING or epoch <= (log.durable if level == SYNCED else log.written)

    def _run_durable_callbacks(self) -> None:
        safe = [owner for owner, (epoch, level, _) in self.pending_replies.items() if self._has_reached(epoch, level)]
        for owner in safe:
            reply = self.pending_replies.pop(owner, None)  # None: an earlier callback withdrew it
            if reply is not None:
                reply[2]()

    # -- failure -----------------------------------------------------------------------------------------------------

    def log_failed(self, reason: str) -> None:
        """The log failed: stop all confirms and replies, as none can be durable."""
        if self.failure is None:
            self.failure = reason
            if self.on_failure is not None:
                self.on_failure(reason)

    # -- watching ----------------------------------------------------------------------------------------------------

    @property
    def connection_count(self) -> int:
        """The number of sockets, including those still in the handshake."""
        return self.stats.connections_opened - self.stats.connections_closed

    @property
    def channel_count(self) -> int:
        return sum(len(connection.channels) for connection in self.connections)

    def emit(self, kind: int, vhost: str, **fields: Any) -> None:
        """Report that something was opened, closed, declared or deleted; the fields are those of `Event`."""
        if self.events.is_watching:
            self.events.resource_event(kind, vhost, fields)


class TurnCatalog(Catalog):
    """The storage's catalog; records in the turn whether a call logged a durable change."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._catalog = broker.storage.catalog
        self._log = broker.storage.log

    def save(self, kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        work = self._log.work
        self._catalog.save(kind, key, definition)
        self._note(work)

    def delete(self, kind: str, key: tuple[str, ...]) -> None:
        work = self._log.work
        self._catalog.delete(kind, key)
        self._note(work)

    def load(self, kind: str) -> Iterable[dict[str, Any]]:
        return self._catalog.load(kind)

    def _note(self, work_before: int) -> None:
        if self._log.work != work_before:
            self._broker.turn.has_defined = True
