"""Topics: messages spread over partitions, which the members of each consumer group share.

Everything is an ordinary exchange or queue (partitions.py), so any AMQP client can publish to a topic.

Written by tools/unasync.py from aio/topic.py: change that, then run it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.blocking.group_member import GroupMember
from warrenmq.client.blocking.primitives import Lock, check_callback
from warrenmq.client.errors import Misuse, NotFound
from warrenmq.client.partitions import GroupNames, least_loaded
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.confirms import Confirmation
    from warrenmq.client.delivery import Delivery
    from warrenmq.client.engine.channel_state import Body

PERSISTENT = 2
MAX_PARTITIONS = 1000


class Topic:
    """A topic, declared by `channel.declare_topic`.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection, connection.channel() as channel:
    ...     topic = channel.declare_topic("topic-example", partitions=4, groups=["billing"])
    ...     for number in range(3):
    ...         confirmation = topic.publish(str(number), key="customer 7")
    ...         confirmation.result()
    ...     with topic.consume(group="billing", timeout=5) as deliveries:
    ...         for delivery in deliveries:
    ...             print(delivery.body, delivery.ack())
    ...             if delivery.body == b"2":
    ...                 break
    ...     _ = topic.delete_group("billing")
    ...     topic.delete()
    b'0' True
    b'1' True
    b'2' True

    Messages with the same key go to the same partition, in order; one without a key to the partition with the fewest
    messages. Each group gets each message once; within a group each partition is consumed by one member at a time.
    """

    def __init__(self, channel: Channel, name: str, partitions: int, arguments: Mapping[str, Any] | None) -> None:
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise Misuse(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
        self.channel = channel
        self.name = name
        self.partitions = partitions
        self._arguments = {**(arguments or {}), "x-single-active-consumer": True}
        self._has_least_loaded = "WarrenMQ" in str(channel.connection.server_properties.get("broker", ""))
        self._turns = itertools.count()

    def declare(self, groups: Iterable[str] = ()) -> Topic:
        """Declare the exchanges that publishers use, and the groups; put the channel in confirm mode."""
        for names in [GroupNames(self.name, group) for group in groups]:
            self._declare_group(names)
        self._declare_exchanges()
        if not self.channel._state.is_transactional:
            self.channel.confirm_select()
        return self

    def publish(
        self,
        body: Body,
        *,
        key: str | None = None,
        properties: BasicProperties | None = None,
        delay: float | None = None,
        deliver_at: datetime | int | str | None = None,
        report_to: str | None = None,
        timeout: float | None = None,
    ) -> Confirmation:
        """Send a message, persistent unless `properties` are given; see Channel.publish.

        It is mandatory: if the topic has no group, its confirmation raises Unroutable.
        """
        exchange = self.name
        if key is None and self._has_least_loaded:
            exchange = least_loaded(self.name)
        elif key is None:
            key = str(next(self._turns))  # the broker cannot choose by load: spread by hash
        return self.channel.publish(
            exchange,
            key or "",
            body,
            BasicProperties(delivery_mode=PERSISTENT) if properties is None else properties,
            mandatory=True,
            delay=delay,
            deliver_at=deliver_at,
            report_to=report_to,
            timeout=timeout,
        )

    def consume(
        self,
        callback: Callable[[Delivery], Any] | None = None,
        *,
        group: str = "default",
        prefetch: int = 20,
        drain: float = 30.0,
        check_interval: float = 1.0,
        arguments: Mapping[str, Any] | None = None,
        on_failure: Callable[[Exception], object] | None = None,
        timeout: float | None = None,
    ) -> TopicConsumer:
        """Join the group, which is declared if missing, and receive the messages of this member's partitions.

        They go to the callback, for each partition on a worker of its own, or are iterated, which ends if none comes
        for `timeout` seconds. Each partition has up to `prefetch` unsettled ones. When it is handed to another member,
        that member waits up to `drain` seconds for messages in hand to be settled. Crashed members are noticed within
        `check_interval` seconds after the broker has. `arguments` are those of basic.consume. `on_failure(error)` is
        called when it has left the group by itself, for example because a queue was deleted.

        """
        check_callback(callback)
        check_callback(on_failure)
        if prefetch < 1 or drain < 0 or check_interval <= 0:
            raise Misuse("a topic's consumer needs prefetch >= 1, drain >= 0 and check_interval > 0")
        names = GroupNames(self.name, group)
        connection = self.channel.connection
        member = GroupMember(
            connection, names, self.partitions, callback, on_failure, prefetch, drain, check_interval, arguments
        )
        consumer = TopicConsumer(self, member, timeout)
        consumer._start()
        return consumer

    def delete_group(self, group: str) -> int:
        """Delete a group with its queues; return the number of messages in them."""
        names = GroupNames(self.name, group)
        for exchange in (names.exchange, names.least_loaded, names.members):
            self.channel.exchange_delete(exchange)
        self.channel.queue_delete(names.members)
        count = self._count(names, 0)
        return sum([self.channel.queue_delete(names.queue(number)) for number in range(count)])

    def delete(self) -> None:
        """Delete the exchanges that publishers use; the groups keep their messages."""
        for exchange in (self.name, least_loaded(self.name)):
            self.channel.exchange_delete(exchange)

    # -- declaring ---------------------------------------------------------------------------------------------------

    def _declare_exchanges(self) -> None:
        self.channel.exchange_declare(self.name, "fanout", durable=True)
        if self._has_least_loaded:
            self.channel.exchange_declare(least_loaded(self.name), "fanout", durable=True)

    def _declare_group(self, names: GroupNames) -> None:
        """Declare the group's partitions, then have the topic route to them: no message reaches a part of them."""
        if self._count(names, self.partitions) > self.partitions:
            count = self._count(names, 0)
            raise Misuse(
                f"group {names.group!r} of topic {self.name!r} has {count} partitions, which cannot become fewer "
                f"({self.partitions}): they may hold messages. Use {count} or more, or delete the group first"
            )
        channel = self.channel
        self._declare_exchanges()
        channel.exchange_declare(names.exchange, "x-consistent-hash", durable=True)
        if self._has_least_loaded:
            channel.exchange_declare(names.least_loaded, "x-least-loaded", durable=True)
        for queue in map(names.queue, range(self.partitions)):
            channel.queue_declare(queue, durable=True, arguments=self._arguments)
            if self._has_least_loaded:
                channel.queue_bind(queue, names.least_loaded)
            channel.queue_bind(queue, names.exchange, "1")  # the weight
        if self._has_least_loaded:
            channel.exchange_bind(names.least_loaded, least_loaded(self.name))
        channel.exchange_bind(names.exchange, self.name)

    def _count(self, names: GroupNames, first: int) -> int:
        """Return the number of the group's queues, of which the ones before `first` are not looked for."""
        count = first
        with self.channel.connection.channel() as probe:
            try:
                while True:
                    probe.queue_declare(names.queue(count), passive=True)
                    count += 1
            except NotFound:
                return count


class TopicConsumer:
    """The result of `topic.consume`: a member of a consumer group.

    Settle each delivery by itself, before the next one if order matters. Iteration ends at a close, or if nothing comes
    for `timeout` seconds; it raises what went wrong. It continues after a recovery. At the end of a `with` block, and
    when one without callback is garbage collected, it leaves the group.
    """

    def __init__(self, topic: Topic, member: GroupMember, timeout: float | None) -> None:
        self.topic = topic
        self.timeout = timeout
        self._member = member
        self._is_started = False
        self._lock = Lock()

    @property
    def partitions(self) -> list[int]:
        """The numbers of the partitions that this member consumes from now."""
        return self._member.partitions

    @property
    def members(self) -> list[str]:
        """The ids of the group's members, as far as this one knows."""
        return self._member.members

    @property
    def id(self) -> str:
        """The member's own id."""
        return self._member.id

    def close(self) -> None:
        """Leave the group and wait for running callbacks, up to `drain` seconds. What is not settled is requeued."""
        self._member.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has left the group, and raise if it failed; return False on timeout."""
        return self._member.wait(timeout)

    def stop(self) -> None:
        """Leave the group once the messages in hand are settled, or after `drain` seconds. Does not wait: callbacks and
        signal handlers may call it."""
        self._member.stop()

    def __iter__(self) -> TopicConsumer:
        if self._member.has_callback:
            raise Misuse("this consumer has a callback: its deliveries go there")
        return self

    def __next__(self) -> Delivery:
        self._start()
        delivery = self._member.take(self.timeout)
        if delivery is None:
            raise StopIteration
        return delivery

    def __enter__(self) -> TopicConsumer:
        return self._start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> TopicConsumer:
        if not self._is_started:
            with self._lock:
                if not self._is_started:
                    self.topic._declare_group(self._member.names)
                    self._member.start()
                    if not self._member.has_callback:
                        weakref.finalize(self, self._member.stop).atexit = False
                    self._is_started = True
        return self

    def __repr__(self) -> str:
        return f"<TopicConsumer {self.id!r} of partitions {self.partitions}>"
