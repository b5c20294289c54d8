"""The broker: virtual hosts, users, and the turn in which work becomes safe.

The object that the outside holds. A turn is whatever arrived together: the edge calls into channels and virtual hosts,
then `end_turn` once. Publishes are confirmed there, or when the epoch that holds them is durable.

Owned by the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.errors import NotAllowed
from warrenmq.core.ports import Catalog, EventSink, Storage
from warrenmq.core.reply_to import ReplyQueue
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.core.users import Users
from warrenmq.core.vhost import VHost

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel

DEFAULT_VHOST = "/"


class Broker:
    """Everything that one node serves. `storage` keeps it, `events` (if any) hears of it."""

    def __init__(self, storage: Storage, events: EventSink | None = None) -> None:
        self.storage = storage
        self.catalog: Catalog = storage.catalog
        self.events = events
        self.stats = Stats()
        self.users = Users()
        self.vhosts: dict[str, VHost] = {}
        self.reply_queues: dict[str, ReplyQueue] = {}  # by address
        self.turn = Turn()
        self.awaiting_epoch: dict[Channel, None] = {}
        self.connection_count = 0
        self.channel_count = 0
        self._restore()
        if not self.vhosts:
            self.add_vhost(DEFAULT_VHOST)

    # -- virtual hosts -----------------------------------------------------------------------------------------------

    def add_vhost(self, name: str) -> VHost:
        """Make a virtual host, or give the one that exists."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            vhost = self.vhosts[name] = VHost(self, name)
            self.catalog.save("vhost", (name,), {"name": name})
            self.emit_resource("vhost.added", name, name)
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Remove a virtual host with all that is in it; the edge closes its connections first."""
        vhost = self.vhosts.pop(name)
        for queue in list(vhost.queues.values()):
            vhost.remove_queue(queue)
        for exchange in list(vhost.exchanges.values()):
            vhost.remove_exchange(exchange)
        self.catalog.delete("vhost", (name,))
        self.emit_resource("vhost.deleted", name, name)

    def open_vhost(self, name: str, user: str) -> VHost:
        """The virtual host that a connection asks for; 530 if there is none or the user may not use it."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotAllowed(f"vhost {name} not found")
        if not self.users.may_enter(user, name):
            raise NotAllowed(f"access to vhost '{name}' refused for user '{user}'")
        return vhost

    def _restore(self) -> None:
        for definition in self.catalog.load("vhost"):
            self.vhosts[definition["name"]] = VHost(self, definition["name"])
        for definition in self.catalog.load("exchange"):
            self.vhosts[definition["vhost"]].restore_exchange(definition)
        for definition in self.catalog.load("queue"):
            self.vhosts[definition["vhost"]].restore_queue(definition)
        for definition in self.catalog.load("binding"):
            self.vhosts[definition["vhost"]].restore_binding(definition)

    # -- the turn ----------------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Hand out what is due, close the epoch, and confirm the turn's publishes, now or when the epoch is durable."""
        turn = self.turn
        if turn.due:
            due, turn.due = turn.due, []
            for queue in due:
                queue.dispatch()
        if turn.lost:
            lost, turn.lost = turn.lost, []
            for consumer in lost:
                consumer.channel.consumer_lost(consumer)
        epoch = self.storage.log.end_turn()
        if turn.confirming:
            confirming, turn.confirming = turn.confirming, []
            for channel in confirming:
                if channel.is_open:
                    channel.end_turn(epoch)

    def epoch_is_durable(self, epoch: int) -> None:
        """The commit log says that all epochs up to this one are safe."""
        for channel in list(self.awaiting_epoch):
            if channel.epoch_is_durable(epoch):
                del self.awaiting_epoch[channel]

    # -- watching ----------------------------------------------------------------------------------------------------

    def emit_resource(self, kind: str, vhost: str, name: str) -> None:
        if self.events is not None:
            self.events.resource_event(kind, vhost, name)
