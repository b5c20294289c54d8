"""A channel over all its links: the half that belongs to the loop.

Each call is one method and its reply; changes are recorded in the connection's topology, so that recovery can restore
them. A call during a recovery waits for its end. The half that any thread may use without the loop is ChannelState
(engine/channel_state.py), which this class owns.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from warrenmq.client.confirms import Confirmation
from warrenmq.client.delivery import Delivery, Returned
from warrenmq.client.engine.channel_state import ChannelState, DeliveryBuffer
from warrenmq.client.engine.consumers import EngineConsumer, Notification, WorkQueue
from warrenmq.client.engine.listener_list import ListenerList
from warrenmq.client.engine.pending_replies import PendingReplies
from warrenmq.client.engine.publish_waits import wake_waiters
from warrenmq.client.engine.topology_calls import Arguments, QueueState, TopologyCalls
from warrenmq.client.errors import (
    CallTimedOut,
    ChannelClosed,
    ClientError,
    CloseReason,
    ConnectionClosed,
    ConnectionLost,
    ConsumerCancelled,
    Misuse,
    PublishLost,
    channel_error,
)
from warrenmq.client.topology import ConsumerRecord
from warrenmq.protocol import events, spec

if TYPE_CHECKING:
    from warrenmq.client.engine.connection import EngineConnection

__all__ = ["EngineChannel", "QueueState"]


class ChannelPhase(Enum):
    """How far a channel is, over all links: a recovery leaves it OPEN."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"  # the user called `close`
    ENDED = "ended"


class EngineChannel(TopologyCalls):
    """One channel. `facade` is the Channel that the user holds and that deliveries refer to."""

    def __init__(self, engine: EngineConnection, number: int) -> None:
        self.engine = engine
        self.number = number
        self.facade: Any = self
        self.waits = engine.make_waits(self._run_confirm_callback, self._report)
        self.state = self.waits.state = ChannelState(engine.shared, number, self.waits, self)
        self.replies = PendingReplies()
        self.work_queue: WorkQueue | None = None
        self.phase = ChannelPhase.OPENING
        self.refusal: ChannelClosed | None = None  # closed by the server during a recovery
        self.prefetch: tuple[int, int] = (0, 0)  # count and size, for new consumers
        self.channel_prefetch: tuple[int, int] | None = None
        self.redelivers = True  # after the rollback of a transaction block
        self._is_in_transaction = False  # a transaction block is open
        self._selects_by_hand = False  # the user called tx_select, and tracks transactions itself
        self._tag_prefix = f"warren-{secrets.token_hex(4)}"
        self._next_tag = 1
        self.return_listeners: ListenerList[Callable[[Returned], object]] = ListenerList()
        self.confirm_listeners: ListenerList[Callable[[int, bool, bool], object]] = ListenerList()
        # Called for every lost link, and for the channel's end (`is_final`).
        self.close_listeners: ListenerList[Callable[[CloseReason], object]] = ListenerList()

    # -- any thread --------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return True from opening to the final end, also during a recovery."""
        return self.phase is not ChannelPhase.OPENING and self.close_reason is None

    @property
    def is_closing(self) -> bool:
        """Return True once the user has closed the channel, or it has ended."""
        return self.phase in (ChannelPhase.CLOSING, ChannelPhase.ENDED)

    @property
    def close_reason(self) -> CloseReason | None:
        return self.state.close_reason or self.engine.shared.final_reason

    @property
    def life(self) -> int:
        """The number of links on which the channel was opened."""
        return self.state.life

    @property
    def needs_transaction(self) -> bool:
        """Return True if a block made the channel transactional: publish and settle only inside one."""
        return self.state.is_transactional and not self._selects_by_hand

    @property
    def transaction_open(self) -> bool:
        """Return True while a transaction block is open."""
        return self._is_in_transaction

    @transaction_open.setter
    def transaction_open(self, is_open: bool) -> None:
        self._is_in_transaction = is_open
        self._review_transaction()

    def _review_transaction(self) -> None:
        with self.engine.shared.lock:
            self.state.set_outside_transaction(self.needs_transaction and not self._is_in_transaction)

    def add_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> None:
        self.confirm_listeners.add(listener)
        self.state.has_confirm_listeners = True

    def remove_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> bool:
        was_there = self.confirm_listeners.remove(listener)
        self.state.has_confirm_listeners = bool(self.confirm_listeners)
        return was_there

    # -- opening and calling -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the channel on the present link."""
        await self.request(spec.ChannelOpen(), spec.ChannelOpenOk, on_late_reply=self._close_late)
        protocol = self.engine.shared.protocol
        if protocol is None:
            raise self.engine.shared.not_open()
        with self.engine.shared.lock:
            if self.state.close_reason is None:
                self.state.attach(protocol)
            if self.phase is ChannelPhase.OPENING:
                self.state.resume_publishing()
                self.phase = ChannelPhase.OPEN

    def _close_late(self, reply: object) -> None:
        """Close a channel that the server opened after the caller gave up."""
        self.replies.add(spec.ChannelCloseOk, on_late_reply=lambda _: self.engine.forget(self)).cancel()
        self.engine.send(self.number, spec.ChannelClose(spec.REPLY_SUCCESS, ""))

    async def request(
        self, method: spec.Method, *expects: type, on_late_reply: Callable[[Any], None] | None = None
    ) -> Any:
        """Send on the present link and wait for the reply."""
        return await self.engine.request(self.replies, self.number, method, *expects, on_late_reply=on_late_reply)

    async def call(self, timeout: float | None, method: spec.Method, *expects: type) -> Any:
        """Make one of the user's calls: wait for a recovery, under one deadline."""
        return await self.engine.with_deadline(timeout, method.name, self._ask_when_ready(method, *expects))

    async def _ask_when_ready(
        self, method: spec.Method, *expects: type, on_late_reply: Callable[[Any], None] | None = None
    ) -> Any:
        await self._ready()
        return await self.request(method, *expects, on_late_reply=on_late_reply)

    async def _ready(self) -> None:
        self.require_open()
        await self.engine.wait_ready()
        self.require_open()

    def require_open(self) -> None:
        if self.state.close_reason is not None:
            raise channel_error(self.state.close_reason)
        if self.engine.shared.final_reason is not None:
            raise ConnectionClosed(self.engine.shared.final_reason)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def qos(
        self,
        prefetch_count: int = 0,
        *,
        prefetch_size: int = 0,
        global_: bool = False,
        timeout: float | None = None,
    ) -> None:
        await self.call(timeout, spec.BasicQos(prefetch_size, prefetch_count, global_), spec.BasicQosOk)
        if global_:
            self.channel_prefetch = prefetch_count, prefetch_size
        else:
            self.prefetch = prefetch_count, prefetch_size

    async def get(self, queue: str, *, auto_ack: bool = False, timeout: float | None = None) -> Delivery | None:
        method = spec.BasicGet(self.queue_name(queue), auto_ack)
        late = None if auto_ack else self._requeue_late
        asking = self._ask_when_ready(method, spec.BasicGetOk, spec.BasicGetEmpty, on_late_reply=late)
        reply = await self.engine.with_deadline(timeout, method.name, asking)
        if auto_ack and isinstance(reply, Delivery):
            reply.removed_by_broker()
        return reply if isinstance(reply, Delivery) else None

    def _requeue_late(self, reply: object) -> None:
        """Requeue a message that arrived after `get` timed out."""
        if isinstance(reply, Delivery):
            self.requeue([reply.delivery_tag])

    def requeue(self, tags: Iterable[int]) -> None:
        """Requeue deliveries that the user will not settle; outside a transaction, in one of their own.

        No publish of the user can get into it: a block begins with a call on this loop.
        """
        for tag in tags:
            self.state.requeue(tag)
        if self.state.is_outside_transaction and self.state.uncommitted and self.state.protocol is not None:
            self.state.end_transaction(False)
            self.replies.add(spec.TxCommitOk).cancel()
            self.engine.send(self.number, spec.TxCommit())

    async def consume(
        self,
        queue: str,
        callback: Callable[[Delivery], object] | None = None,
        *,
        work_queue: WorkQueue | None = None,
        consumer_tag: str = "",
        auto_ack: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
        arguments: Arguments | None = None,
        on_cancel: Callable[..., object] | None = None,
        timeout: float | None = None,
    ) -> EngineConsumer:
        """Deliver to the callback on the channel's worker, or to the given work queue."""
        tag = consumer_tag or self._make_tag()
        buffer = (
            self.state.buffer
            if work_queue is None
            else DeliveryBuffer(self.state, self.engine.work_queues.add(work_queue))
        )
        consumer = EngineConsumer(
            self,
            queue,
            tag,
            callback,
            work_queue,
            buffer,
            on_cancel,
            auto_ack,
            exclusive,
            no_local,
            dict(arguments or {}),
        )
        try:
            await self.engine.with_deadline(timeout, "basic.consume", self._begin_consumer(consumer))
        except BaseException as error:
            self._drop_unconfirmed(consumer, error)
            raise
        self.engine.topology.add_consumer(
            ConsumerRecord(self.number, tag, consumer.queue, auto_ack, exclusive, no_local, consumer.arguments)
        )
        return consumer

    async def _begin_consumer(self, consumer: EngineConsumer) -> None:
        await self._ready()
        if consumer.tag in self.state.consumers:
            raise Misuse(f"the channel has a consumer {consumer.tag!r} already")
        consumer.prefetch = self.prefetch
        # Before the reply: deliveries follow it at once. After the wait: a recovery subscribes all in the table.
        self.state.consumers[consumer.tag] = consumer
        await self.subscribe(consumer)

    async def subscribe(self, consumer: EngineConsumer) -> None:
        """Send basic.consume on the present link."""
        consumer.queue = self.queue_name(consumer.queue)
        method = spec.BasicConsume(
            consumer.queue,
            consumer.tag,
            consumer.no_local,
            consumer.auto_ack,
            consumer.exclusive,
            False,
            consumer.arguments,
        )
        consumer.is_subscribed = True
        await self.request(method, spec.BasicConsumeOk, on_late_reply=self._cancel_late)

    def _make_tag(self) -> str:
        tag = f"{self._tag_prefix}-{self._next_tag}"
        self._next_tag += 1
        return tag

    def _drop_unconfirmed(self, consumer: EngineConsumer, error: BaseException) -> None:
        """Undo a failed consume. If its reply may still come, its deliveries are requeued."""
        consumer.is_active = False
        is_answered = isinstance(error, ClientError) and not isinstance(error, CallTimedOut)
        if (is_answered or not consumer.is_subscribed) and self.state.consumers.get(consumer.tag) is consumer:
            del self.state.consumers[consumer.tag]
        consumer.buffer = None
        if consumer.work_queue is not None:
            consumer.work_queue.stop()
            self.engine.work_queues.discard(consumer.work_queue)

    def _cancel_late(self, reply: spec.BasicConsumeOk) -> None:
        self.engine.send(self.number, spec.BasicCancel(reply.consumer_tag, True))
        self.state.consumers.pop(reply.consumer_tag, None)

    async def cancel(self, consumer: EngineConsumer | str, *, timeout: float | None = None) -> None:
        """Stop the deliveries; those already received are still handed out. Do nothing if it has ended."""
        found = self.state.consumers.get(consumer if isinstance(consumer, str) else consumer.tag)
        if found is None or not found.is_active:
            return
        await self.call(timeout, spec.BasicCancel(found.tag), spec.BasicCancelOk)
        self.end_consumer(found, None, is_cancel=True)

    def end_consumer(self, consumer: EngineConsumer, error: ClientError | None, *, is_cancel: bool = False) -> None:
        """Remove the consumer; notify its callback if the server ended it."""
        if not consumer.is_active:
            return
        consumer.is_active = False
        self.state.consumers.pop(consumer.tag, None)
        self.engine.topology.remove_consumer(self.number, consumer.tag)
        if isinstance(error, ConsumerCancelled) and consumer.on_cancel is not None:
            self.notify("cancel callback", consumer.on_cancel, consumer)
        if consumer.work_queue is not None:
            consumer.work_queue.stop(error, is_cancel=is_cancel)
            self.engine.work_queues.discard(consumer.work_queue)

    def set_default_consumer(self, callback: Callable[[Delivery], object] | None) -> None:
        """Hand deliveries of unknown consumers to the callback. Any thread."""
        self.state.default_consumer = (
            None
            if callback is None
            else EngineConsumer(self, "", "", callback, None, self.state.buffer, None, False, False, False, {})
        )

    async def recover(self, requeue: bool = True, *, timeout: float | None = None) -> None:
        await self.call(timeout, spec.BasicRecover(requeue), spec.BasicRecoverOk)

    # -- confirms and transactions -----------------------------------------------------------------------------------

    async def confirm_select(self, *, timeout: float | None = None) -> None:
        if self.state.is_confirming:
            return
        if self.state.is_transactional:
            raise Misuse("the channel is in tx mode: it cannot have confirms")
        await self.engine.with_deadline(timeout, "confirm.select", self._select_confirms())

    async def _select_confirms(self) -> None:
        await self._ready()
        # Set before the reply: the broker numbers all publishes that follow the request.
        self.state.is_confirming = True
        await self.request(spec.ConfirmSelect(), spec.ConfirmSelectOk)

    async def wait_for_confirms(self, timeout: float | None = None) -> None:
        """Wait until everything published so far is settled; raise the first failure."""
        if not self.state.is_confirming:
            raise Misuse("the channel is not in confirm mode: call confirm_select first")
        with self.engine.shared.lock:
            barrier = self.state.ledger.add_barrier()
        if not barrier.done():
            await self.waits.wait(barrier, timeout)
        with self.engine.shared.lock:
            bad = self.state.ledger.take_first_error()
        if bad is not None:
            raise bad
        self.require_open()

    async def tx_select(self, *, timeout: float | None = None) -> None:
        if self.state.is_confirming:
            raise Misuse("the channel is in confirm mode: it cannot have transactions")
        await self.engine.with_deadline(timeout, "tx.select", self._select_transactions())

    async def _select_transactions(self) -> None:
        await self._ready()
        was_transactional, self.state.is_transactional = self.state.is_transactional, True
        if not self._is_in_transaction:
            self._selects_by_hand = True
        try:
            # Without a reply in time the server may have done it, so the channel counts as transactional.
            await self.request(spec.TxSelect(), spec.TxSelectOk)
        except ConnectionLost:
            self.state.is_transactional = was_transactional
            raise
        finally:
            self._review_transaction()
        self.state.lost_transaction = False

    async def tx_commit(self, *, timeout: float | None = None) -> None:
        """Commit; raise ConnectionLost, once, if a lost link undid the transaction."""
        await self.engine.with_deadline(timeout, "tx.commit", self._ready())
        if self.state.lost_transaction:
            await self.tx_rollback(timeout=timeout)  # what followed the loss is half of it
            reason = self.engine.shared.lost_reason
            raise ConnectionLost("the transaction was rolled_back by the loss of the connection", reason)
        await self.call(timeout, spec.TxCommit(), spec.TxCommitOk)
        self.state.end_transaction(False)

    async def tx_rollback(self, *, requeue: bool = False, timeout: float | None = None) -> None:
        """Roll back; with `requeue` return to their queues the deliveries that the transaction had settled."""
        await self.engine.with_deadline(timeout, "tx.rollback", self._roll_back(requeue))

    async def _roll_back(self, requeue: bool) -> None:
        await self._ask_when_ready(spec.TxRollback(), spec.TxRollbackOk)
        self.state.end_transaction(True)
        self.state.lost_transaction = False
        consumers = self.state.consumers.values()
        for each in consumers:
            each.warn_of_rollback()
        if not requeue or any(each.has_stream_arguments for each in consumers):
            return
        for tag, multiple in self.state.rolled_back:
            self.state.requeue(tag, multiple)
        if self.state.uncommitted:  # otherwise the connection was lost, and the broker has requeued all
            await self.request(spec.TxCommit(), spec.TxCommitOk)
            self.state.end_requeue()

    # -- input -------------------------------------------------------------------------------------------------------

    def on_event(self, event: events.MethodReceived | events.ContentReceived) -> None:
        if isinstance(event, events.ContentReceived):
            self._on_content(event)
            return
        method = event.method
        if isinstance(method, spec.ChannelClose):
            self._on_close(method)
        elif isinstance(method, spec.BasicCancel):
            self._on_cancel(method)
        elif isinstance(method, spec.ChannelFlow):
            self.engine.send(self.number, spec.ChannelFlowOk(method.active))
            if method.active:
                self.engine.on_writable()
        else:
            self.replies.resolve(method, type(method))

    def _on_content(self, event: events.ContentReceived) -> None:
        method = event.method
        if not isinstance(method, spec.BasicGetOk):
            return
        with self.engine.shared.lock:
            tag = self.state.to_client_tag(method.delivery_tag)
        delivery = Delivery(
            self.state,
            None,
            "",
            tag,
            method.redelivered,
            method.exchange,
            method.routing_key,
            event.header,
            event.body,
            method.message_count,
        )
        if self.engine.metrics is not None:
            self.engine.metrics.delivered(1, len(event.body))
        self.replies.resolve(delivery, spec.BasicGetOk)

    def _on_cancel(self, method: spec.BasicCancel) -> None:
        """Handle the end of a consumer by the server."""
        if not method.no_wait:
            self.engine.send(self.number, spec.BasicCancelOk(method.consumer_tag))
        consumer = self.state.consumers.get(method.consumer_tag)
        if consumer is not None:
            self.end_consumer(consumer, ConsumerCancelled(consumer.tag), is_cancel=True)

    def on_return(self, returned: Returned) -> None:
        for listener in self.return_listeners:
            self.notify("return callback", listener, returned)

    def on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        for listener in self.confirm_listeners:
            self.notify("confirm callback", listener, tag, multiple, is_ack)

    def on_lost(self, reason: CloseReason, *, is_news: bool) -> None:
        """Handle a lost link. `is_news` is False if it was one of the recovery's attempts."""
        self.replies.fail_all(ConnectionLost(f"the connection was lost: {reason}", reason))
        if not self.is_open:
            self.engine.forget(self)  # it was opening or closing
            return
        if reason.is_final:
            return  # `on_connection_end` follows
        for consumer in list(self.state.consumers.values()):
            consumer.is_subscribed = False
            if not consumer.is_active:
                del self.state.consumers[consumer.tag]
        if not self.engine.shared.resends_unconfirmed:
            self._fail_unconfirmed(PublishLost(f"the connection was lost before the confirm: {reason}"))
        if is_news:
            self._notify_close(reason)

    def on_connection_end(self, reason: CloseReason) -> None:
        """Handle the end of the connection."""
        error = None if reason.by == "client" else ConnectionClosed(reason)
        self._end(reason, ConnectionClosed(reason), error)

    def _on_close(self, method: spec.ChannelClose) -> None:
        """Handle a close by the server, which `state` has applied already."""
        reason = CloseReason("server", method.reply_code, method.reply_text, method.class_id, method.method_id)
        error = channel_error(reason)
        if self.state.is_restoring:
            if not self.engine.shared.resends_unconfirmed:
                self._fail_unconfirmed(PublishLost(f"the channel was closed before the confirm: {reason}"))
            self.refusal = error
            self.replies.fail_all(error)
        elif not self.is_closing:
            self.engine.forget(self)
            self._end(reason, error, error)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(
        self, reply_code: int = spec.REPLY_SUCCESS, reply_text: str = "Goodbye", *, timeout: float | None = None
    ) -> None:
        """End the channel; do nothing if it has ended."""
        if not self.is_open or self.is_closing:
            return
        self.phase = ChannelPhase.CLOSING
        reason = CloseReason("client", reply_code, reply_text)
        is_on_link = self.state.protocol is not None or self.state.is_restoring
        with self.engine.shared.lock:
            self.state.close(reason)
        try:
            if is_on_link:
                await self.engine.with_deadline(timeout, "channel.close", self._send_close(reply_code, reply_text))
            self.engine.forget(self)
        except CallTimedOut:
            pass  # its number is reused once the server has answered
        except (ConnectionLost, ConnectionClosed, Misuse):
            self.engine.forget(self)  # the server has closed it too
        finally:
            self._end(reason, channel_error(reason), None)
        if self.work_queue is not None:
            await self.engine.work_queues.wait_ended(self.work_queue)

    async def _send_close(self, reply_code: int, reply_text: str) -> None:
        if self.state.is_restoring:
            await self.engine.wait_ready()  # recovery stops at this channel's next step
        method = spec.ChannelClose(reply_code, reply_text)
        # From here on only close-ok is accepted on this channel: no other reply will come.
        self.replies.fail_all(channel_error(CloseReason("client", reply_code, reply_text)))
        await self.request(method, spec.ChannelCloseOk, on_late_reply=lambda _: self.engine.forget(self))

    def end_refused(self, error: ClientError, reason: CloseReason) -> None:
        """End the channel because the broker refuses to restore it."""
        with self.engine.shared.lock:
            self.state.close(reason)
        self.engine.forget(self)
        self._end(reason, error, error)

    def _end(self, reason: CloseReason, error: ClientError, iteration_error: ClientError | None) -> None:
        if self.phase is ChannelPhase.ENDED:
            return
        self.replies.fail_all(error)
        self._fail_unconfirmed(PublishLost(f"no confirm will come: {reason}"))
        for consumer in list(self.state.consumers.values()):
            self.end_consumer(consumer, iteration_error)
        self.engine.topology.remove_channel(self.number)
        self._notify_close(reason)
        was_open = self.phase is not ChannelPhase.OPENING
        self.phase = ChannelPhase.ENDED
        if self.work_queue is not None:
            self.work_queue.stop()
            self.engine.work_queues.discard(self.work_queue)
        if self.engine.metrics is not None and was_open:
            self.engine.metrics.channel_closed()

    def _fail_unconfirmed(self, error: PublishLost) -> None:
        to_wake: list[Confirmation] = []
        with self.engine.shared.lock:
            count = self.state.fail_unconfirmed(error, to_wake)
        wake_waiters(self.engine.shared, to_wake)
        self.engine.work_queues.review()
        if count and self.engine.metrics is not None:
            self.engine.metrics.publish_lost(count)

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def get_work_queue(self) -> WorkQueue:
        """Return the channel's worker, created on first use."""
        if self.work_queue is None:
            self.work_queue = self.state.buffer.work_queue = self.engine.make_work_queue(f"channel-{self.number}")
        return self.work_queue

    def notify(self, context: str, callback: Callable[..., object], *arguments: object) -> None:
        if self.phase is ChannelPhase.ENDED:
            return
        self.get_work_queue().put([Notification(context, self.facade, callback, *arguments)])

    def _notify_close(self, reason: CloseReason) -> None:
        for listener in self.close_listeners:
            self.notify("close callback", listener, reason)

    def _run_confirm_callback(self, callback: Callable[..., object], confirmation: Any) -> None:
        self.notify("confirm callback", callback, confirmation)

    def _report(self, context: str, error: BaseException) -> None:
        self.engine.report(context, error, self.facade)

    def __repr__(self) -> str:
        return f"<channel {self.number} of {self.engine!r}>"
