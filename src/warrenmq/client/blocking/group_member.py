"""A member of a consumer group: it consumes its share of a topic's partitions.

Members learn of each other through the group's fanout exchange: `join` is answered by `here`, `leave` ends it. The
broker knows how many there are, as each consumes from one queue that stays empty: if that number and the known members
differ, the member announces itself again and sends `here` to each known one; those whose queue is gone have crashed.
From the same members all compute the same owners (partitions.py).

The broker decides who receives: partitions are queues with a single active consumer. Their new owner consumes at once,
on standby. The old one hands out no more messages, waits until those handed out are settled, and closes the partition's
channel: the broker requeues the rest in order and activates the new owner, in one step. So members that disagree for a
moment lose nothing and process no partition together.

The condition guards the members and the partitions; one worker, the watcher, makes the calls.

Written by tools/unasync.py from aio/group_member.py: change that, then run it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any

from warrenmq.client.blocking.primitives import Condition, Task, call_user, join, start, wait_for_confirm
from warrenmq.client.errors import (
    CallTimedOut,
    ChannelClosed,
    ClientError,
    CloseReason,
    ConnectionClosed,
    ConnectionLost,
    ConsumerCancelled,
    PublishFailed,
    Unroutable,
    channel_error,
)
from warrenmq.client.partitions import GroupNames, assign
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.connection import Connection
    from warrenmq.client.delivery import Delivery

_log = logging.getLogger("warrenmq.client")

PARTITIONS_HEADER = "x-partitions"

# Seconds between two looks at whether the deliveries of a partition that is handed over are settled.
_SETTLE_INTERVAL = 0.02
# A member is given up after this many checks in a row without an answer.
_MAX_DOUBTS = 3


class Partition:
    """A partition that this member consumes from, on a channel of its own."""

    __slots__ = ("channel", "handed", "number", "prune_at", "release_by", "running", "unread")

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.unread: deque[Delivery] = deque()
        self.handed: list[Delivery] = []  # to the user, and perhaps not settled yet
        self.prune_at = 16  # length
        self.running = 0  # callbacks
        self.release_by: float | None = None  # deadline of the handover; None: it is not handed over

    def has_unread(self) -> bool:
        """Whether a delivery may be handed out. Removes those that a lost connection made stale."""
        while self.unread and self.unread[0].is_stale:
            self.unread.popleft()
        return bool(self.unread) and self.release_by is None and self.channel.is_open

    def hand_out(self, delivery: Delivery) -> Delivery:
        """Note that the user has it. Now and then forget those that are settled."""
        if len(self.handed) >= self.prune_at:
            self.handed = [each for each in self.handed if not (each.is_settled or each.is_stale)]
            self.prune_at = 16 + 2 * len(self.handed)
        self.handed.append(delivery)
        return delivery

    def may_close(self, waits_for_settlement: bool = True) -> bool:
        """Whether it is handed over, and the user is done with it or out of time."""
        if self.release_by is None:
            return False
        is_in_use = self.running or (
            waits_for_settlement and not all(each.is_settled or each.is_stale for each in self.handed)
        )
        return not is_in_use or monotonic() > self.release_by or not self.channel.is_open


class GroupMember:
    """Consumes the partitions assigned to this member until stopped. `callback` None: `take` returns the deliveries."""

    def __init__(
        self,
        connection: Connection,
        names: GroupNames,
        partitions: int,
        callback: Callable[[Delivery], Any] | None,
        on_failure: Callable[[Exception], object] | None,
        prefetch: int,
        drain: float,
        check_interval: float,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        self.names = names
        self.id = f"{names.exchange}.member.{token_hex(8)}"
        self._connection = connection
        self._callback = callback
        self._on_failure = on_failure
        self._prefetch = prefetch
        self._arguments = arguments
        self._drain = drain
        self._check_interval = check_interval
        self._changed = Condition()
        self._has_news = True
        self._members = {self.id}
        self._partition_count = partitions
        self._partitions: dict[int, Partition] = {}
        self._doubts = 0  # in a row, about the members
        self._is_stopping = False
        self._is_closing = False
        self._failure: Exception | None = None
        self._control: Channel | None = None
        self._life = 0
        self._counted_by = ""  # consumer tag
        self._watcher: Task | None = None

    # -- the user's side ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group; the partitions follow."""
        control = self._control = self._connection.channel()
        try:
            control.confirm_select()
            control.exchange_declare(self.names.members, "fanout", durable=True)
            control.queue_declare(self.names.members, durable=True)
            control.queue_declare(self.id, exclusive=True)
            control.queue_bind(self.id, self.names.members)
            control.add_close_listener(self._control_closed)
            control.consume(self.id, self._heard, auto_ack=True)
            counted = control.consume(self.names.members, _ignore, auto_ack=True)
            self._counted_by, self._life = counted.tag, control.life
            self._announce("join")
        except ClientError:
            control.close()
            raise
        self._watcher = start(self._watch, "warren-client-group-member")

    def take(self, timeout: float | None) -> Delivery | None:
        """Return the next delivery, the partitions in turn; None on timeout or once stopped; raise what failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended() or self._next_unread() is not None, timeout)
            partition = self._next_unread()
            if partition is not None:
                self._partitions[partition.number] = self._partitions.pop(partition.number)  # to the end of the line
                return partition.hand_out(partition.unread.popleft())
            if self._failure is not None:
                raise self._failure
            return None

    def wait(self, timeout: float | None) -> bool:
        """Wait until this member has left the group, and raise what failed; return False on timeout."""
        assert self._watcher is not None
        if not join(self._watcher, timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    @property
    def has_callback(self) -> bool:
        return self._callback is not None

    @property
    def partitions(self) -> list[int]:
        """The partitions that this member consumes from now, without those that it is handing over."""
        with self._changed:
            return sorted(each.number for each in self._partitions.values() if each.release_by is None)

    @property
    def members(self) -> list[str]:
        with self._changed:
            return sorted(self._members)

    def stop(self) -> None:
        """Ask the watcher to leave the group once what is in hand is settled; never waits.

        Takes no lock: a signal handler or a garbage collection may call it.
        """
        self._is_stopping = True

    def close(self) -> None:
        """Leave the group: wait up to `drain` for running callbacks; the broker requeues what is not settled."""
        with self._changed:
            self._is_stopping = self._is_closing = True
            self._notify()
        if self._watcher is not None:
            join(self._watcher, None)

    def _has_ended(self) -> bool:
        return self._is_stopping or self._failure is not None

    def _next_unread(self) -> Partition | None:
        return next((each for each in self._partitions.values() if not self._is_stopping and each.has_unread()), None)

    def _notify(self) -> None:
        """Wake the watcher and the readers. Under the condition."""
        self._has_news = True
        self._changed.notify_all()

    # -- what the other members say, on the control channel's worker --------------------------------------------------

    def _heard(self, delivery: Delivery) -> None:
        kind, member = delivery.properties.type, delivery.body.decode()
        if member == self.id:
            return
        with self._changed:
            if kind == "leave":
                self._members.discard(member)
            else:
                self._members.add(member)
                self._partition_count = max(self._partition_count, delivery.headers.get(PARTITIONS_HEADER, 0))
            must_answer = kind == "join" and not self._is_stopping
            self._notify()
        if must_answer:
            self._publish("here", "", member)

    def _announce(self, kind: str) -> None:
        self._publish(kind, self.names.members, "")

    def _publish(self, kind: str, exchange: str, routing_key: str, mandatory: bool = False) -> Any:
        assert self._control is not None
        properties = BasicProperties(type=kind, headers={PARTITIONS_HEADER: self._partition_count})
        return self._control.publish(exchange, routing_key, self.id, properties, mandatory=mandatory)

    def _control_closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            self._fail(channel_error(reason))
        with self._changed:
            self._notify()

    # -- watching ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._has_ended():
                self._has_news = False
                try:
                    if self._knows_members():
                        self._hand_over_others()
                        self._open_own()
                    self._close_released()
                except (ConnectionLost, CallTimedOut, PublishFailed) as error:
                    _log.info("the consumer group %s will be checked again: %s", self.names.exchange, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._has_news or self._has_ended(), self._pause())
        except Exception as error:  # noqa: BLE001 - `take` and `wait` raise it
            self._fail(error)
        finally:
            self._leave()
        if self._failure is not None and self._on_failure is not None:
            call_user(self._on_failure, self._failure)

    def _pause(self) -> float:
        """Return the longest wait until the next step. Under the condition."""
        is_releasing = any(each.release_by is not None for each in self._partitions.values())
        return _SETTLE_INTERVAL if is_releasing else self._check_interval

    def _fail(self, error: Exception) -> None:
        """End because of the error; quietly if the user has closed the connection."""
        with self._changed:
            if isinstance(error, (ChannelClosed, ConnectionClosed)) and error.reason.by == "client":
                self._is_stopping = True
            elif not self._has_ended():
                self._failure = error
                _log.error("this member of the consumer group %s ends: %s", self.names.exchange, error)
            self._notify()

    def _knows_members(self) -> bool:
        """Compare the known members with the broker's number; if they differ, ask. Return False to wait for answers."""
        assert self._control is not None
        if self._control.life != self._life:  # after a lost connection the others may have changed
            self._life = self._control.life
            with self._changed:
                self._members = {self.id}
        count = self._control.consumer_count(self.names.members)
        if count < len(self._members):
            self._forget_crashed()
        if count == len(self._members):
            self._doubts = 0
            return True
        self._doubts += 1
        self._announce("join")
        return self._doubts > _MAX_DOUBTS

    def _forget_crashed(self) -> None:
        """Remove the members whose queue is gone."""
        limit = self._connection.factory.call_timeout
        for member in self.members:
            try:
                wait_for_confirm(self._publish("here", "", member, mandatory=True), limit)
            except Unroutable:
                with self._changed:
                    self._members.discard(member)

    def _hand_over_others(self) -> None:
        """Hand out nothing more of the partitions that belong to other members now."""
        with self._changed:
            own = set(self._own())
            for each in self._partitions.values():
                if not each.channel.is_open:
                    _log.warning("partition %s is consumed anew: %s", each.number, each.channel.close_reason)
                if each.release_by is None and (each.number not in own or not each.channel.is_open):
                    each.release_by = monotonic() + self._drain

    def _own(self) -> Iterator[int]:
        owners = assign(self._partition_count, self._members)
        return (partition for partition, owner in owners.items() if owner == self.id)

    def _open_own(self) -> None:
        with self._changed:
            wanted = [number for number in self._own() if number not in self._partitions]
        for number in wanted:
            channel = self._connection.channel()
            partition = Partition(number, channel)
            try:
                channel.qos(self._prefetch)
                with self._changed:
                    self._partitions[number] = partition
                channel.consume(
                    self.names.queue(number),
                    self._handler_of(partition),
                    arguments=self._arguments,
                    on_cancel=self._handle_cancel_of(number),
                )
            except BaseException:
                with self._changed:
                    self._partitions.pop(number, None)
                channel.close()
                raise

    def _close_released(self) -> None:
        with self._changed:
            released = [each for each in self._partitions.values() if each.may_close()]
        for each in released:
            each.channel.close()
            with self._changed:
                del self._partitions[each.number]
                self._has_news = True  # it may be this member's again

    def _leave(self) -> None:
        """Hand over everything, and notify the other members."""
        deadline = monotonic() + self._drain
        with self._changed:
            for each in self._partitions.values():
                each.release_by = deadline
            self._notify()
            while not self._changed.wait_for(self._is_done, _SETTLE_INTERVAL):
                pass  # settlements do not notify
        assert self._control is not None
        try:
            for each in list(self._partitions.values()):
                each.channel.close()
            if self._control.is_open:
                self._control.cancel(self._counted_by)
                self._control.queue_delete(self.id)
                self._announce("leave")
                self._control.close()
        except ClientError as error:
            _log.info("leaving the consumer group %s: %s", self.names.exchange, error)  # the others notice by the count

    def _is_done(self) -> bool:
        """Whether all partitions may be closed. What is in hand at a `close`, the user will not settle any more."""
        return all(each.may_close(not self._is_closing) for each in self._partitions.values())

    # -- deliveries, on the partitions' workers ----------------------------------------------------------------------

    def _handler_of(self, partition: Partition) -> Callable[[Delivery], Any]:
        callback = self._callback

        def call(delivery: Delivery) -> Any:
            assert callback is not None
            with self._changed:
                if partition.release_by is not None:
                    return  # unsettled: the broker requeues it when the channel is closed
                partition.hand_out(delivery)
                partition.running += 1
            try:
                call_user(callback, delivery)
            finally:
                with self._changed:
                    partition.running -= 1
                    self._notify()

        def keep(delivery: Delivery) -> None:
            with self._changed:
                partition.unread.append(delivery)
                self._changed.notify_all()

        return keep if callback is None else call

    def _handle_cancel_of(self, number: int) -> Callable[[Any], None]:
        def cancelled(_: object) -> None:
            self._fail(ConsumerCancelled(self.names.queue(number)))

        return cancelled


def _ignore(_: object) -> None:
    """No message comes: the consumer is there to be counted."""
