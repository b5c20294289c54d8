"""The methods of one channel: from queue.declare to tx.rollback.

One small function per method, found by its class in `_HANDLERS`. Each checks permissions, calls the core and replies;
refusals of the core are raised to the session.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from warrenmq.core.arguments import find_ignored_arguments, validate_consumer_arguments
from warrenmq.core.consumer_filter import ARGUMENT as FILTER
from warrenmq.core.errors import NotFound, NotImplementedHere, PreconditionFailed
from warrenmq.core.options import alternate_of
from warrenmq.core.pace import ARGUMENT as RATE
from warrenmq.core.ports import NOTHING, CommitLog
from warrenmq.core.publish_rules import ADDRESS_PREFIX, DIRECT_REPLY_TO
from warrenmq.core.reply_to import ReplyQueue
from warrenmq.core.reserved import is_system_stream
from warrenmq.core.routing.topic import find_partial_wildcard
from warrenmq.core.stream import Stream
from warrenmq.core.stream_offsets import TRACKING, is_tracked
from warrenmq.protocol import spec
from warrenmq.protocol.errors import CommandInvalid

if TYPE_CHECKING:
    from warrenmq.server.session import Session


class ChannelMethods:
    """One open channel of a session."""

    __slots__ = (
        "_connection",
        "_last_queue",
        "_log",
        "_outbox",
        "_session",
        "_user",
        "_vhost",
        "_work_before",
        "channel",
        "number",
    )

    def __init__(self, session: Session, number: int) -> None:
        assert session.core is not None
        connection = session.core
        self._session = session
        self._connection = connection
        self._vhost = connection.vhost
        self._outbox = session.outbox
        self._user = connection.user
        self._last_queue: str | None = None
        self._log: CommitLog = session.broker.storage.log
        self._work_before = 0  # durable work before the current method
        self.number = number
        self.channel = connection.open_channel(number)

    def handle(self, method: spec.Method) -> None:
        """Carry out a method."""
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise CommandInvalid("unimplemented method", method.index >> 16, method.index & 0xFFFF)
        self._work_before = self._log.work
        handler(self, method)

    # -- channel -----------------------------------------------------------------------------------------------------

    def flow(self, method: spec.ChannelFlow) -> None:
        if not method.active:
            raise NotImplementedHere("active=false")
        self._reply(spec.ChannelFlowOk(active=True))

    def request_access(self, method: spec.AccessRequest) -> None:
        """Reply with the same ticket to every client; tickets are of an older protocol."""
        self._reply(spec.AccessRequestOk(ticket=1))

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def declare_exchange(self, method: spec.ExchangeDeclare) -> None:
        self._vhost.require_not_default(method.exchange)
        is_durable = False
        if method.passive:
            self._vhost.exchange(_clean(method.exchange))
        else:
            is_durable = method.durable
            name = _clean(method.exchange)
            self._require("configure", "exchange", name)
            alternate = alternate_of(method.arguments)
            if alternate is not None:
                self._require("read", "exchange", name)
                self._require("write", "exchange", alternate)
            self._vhost.declare_exchange(
                name, method.type, method.durable, method.auto_delete, method.internal, method.arguments
            )
        if not method.no_wait:
            self._reply_when_durable(spec.ExchangeDeclareOk(), is_durable)

    def delete_exchange(self, method: spec.ExchangeDelete) -> None:
        name = _clean(method.exchange)
        self._vhost.require_not_default(name)
        self._require("configure", "exchange", name)
        was_missing = name not in self._vhost.exchanges
        self._vhost.delete_exchange(name, method.if_unused)
        if not method.no_wait:
            self._reply_when_durable(spec.ExchangeDeleteOk(), was_missing)

    def bind_exchange(self, method: spec.ExchangeBind) -> None:
        self._require_bindable(method.source, "exchange", method.destination)
        self._vhost.exchange(method.source)
        destination = self._vhost.exchange(method.destination)
        self._vhost.bind(method.source, destination, method.routing_key, method.arguments)
        self._warn_about_key(method.source, method.routing_key)
        if not method.no_wait:
            self._reply_when_durable(spec.ExchangeBindOk(), destination.is_durable)

    def unbind_exchange(self, method: spec.ExchangeUnbind) -> None:
        self._require_bindable(method.source, "exchange", method.destination)
        destination = self._vhost.exchanges.get(method.destination)
        was_bound = False
        if destination is not None and method.source in self._vhost.exchanges:
            was_bound = self._vhost.unbind(
                method.source, destination, method.routing_key, method.arguments, self._connection
            )
        if not was_bound:
            self._warn_about_unbind(method.source, f"exchange '{method.destination}'", method.routing_key)
        if not method.no_wait:
            self._reply_when_durable(spec.ExchangeUnbindOk(), destination is None or destination.is_durable)

    def _require_bindable(self, source: str, destination_kind: str, destination: str) -> None:
        self._vhost.require_not_default(source)
        if destination_kind == "exchange":
            self._vhost.require_not_default(destination)
        self._require("write", destination_kind, destination)
        self._require("read", "exchange", source)

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare_queue(self, method: spec.QueueDeclare) -> None:
        name = _clean(method.queue)
        if name == DIRECT_REPLY_TO or name.startswith(ADDRESS_PREFIX):
            self._declare_reply_queue(name, method.no_wait)
            return
        is_durable = False
        if method.passive:
            if is_system_stream(self._vhost.name, name):
                self._require("read", "queue", name)
            queue = self._vhost.queue(name, self._connection)
            queue.touch()
        else:
            if name:
                self._require("configure", "queue", name)
            self._require_dead_letters(name, method.arguments)
            is_new = name not in self._vhost.queues
            queue = self._vhost.declare_queue(
                name, method.durable, method.exclusive, method.auto_delete, method.arguments, self._connection
            )
            is_durable = queue.is_durable
            if is_new and (ignored := find_ignored_arguments(method.arguments)):
                names = ", ".join(ignored)
                self._warn("argument", f"queue '{queue.name}': arguments without effect in this version: {names}")
        self._last_queue = queue.name
        if not method.no_wait:
            self._reply_when_durable(
                spec.QueueDeclareOk(queue.name, queue.message_count(), len(queue.consumers)), is_durable
            )

    def _declare_reply_queue(self, name: str, no_wait: bool) -> None:
        """Reply with declare-ok if a consumer still waits for replies on this address."""
        if name != DIRECT_REPLY_TO and name not in self._session.broker.reply_queues:
            raise NotFound(f"no queue '{name}' in vhost '{self._vhost.name}'")
        if not no_wait:
            self._reply(spec.QueueDeclareOk(name, 0, 1))

    def _require_dead_letters(self, name: str, arguments: dict[str, Any]) -> None:
        exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(exchange, str):
            if name:
                self._require("read", "queue", name)
            self._require("write", "exchange", exchange)

    def delete_queue(self, method: spec.QueueDelete) -> None:
        name = self._queue_name(method.queue)
        self._require("configure", "queue", name)
        was_missing = name not in self._vhost.queues
        count = self._vhost.delete_queue(name, self._connection, method.if_unused, method.if_empty)
        if not method.no_wait:
            self._reply_when_durable(spec.QueueDeleteOk(count), was_missing)

    def purge_queue(self, method: spec.QueuePurge) -> None:
        name = self._queue_name(method.queue)
        self._require("read", "queue", name)
        count = self._vhost.queue(name, self._connection).purge()
        if not method.no_wait:
            self._reply_when_durable(spec.QueuePurgeOk(count))

    def bind_queue(self, method: spec.QueueBind) -> None:
        name = self._queue_name(method.queue)
        self._require_bindable(method.exchange, "queue", name)
        # An empty queue and an empty key mean the last queue by its own name (AMQP 0-9-1 §1.7.2.3).
        key = name if not method.queue and not method.routing_key else method.routing_key
        self._vhost.exchange(method.exchange)
        queue = self._vhost.queue(name, self._connection)
        self._vhost.bind(method.exchange, queue, key, method.arguments)
        self._warn_about_key(method.exchange, key)
        if not method.no_wait:
            self._reply_when_durable(spec.QueueBindOk(), queue.is_durable)

    def unbind_queue(self, method: spec.QueueUnbind) -> None:
        name = self._queue_name(method.queue)
        self._require_bindable(method.exchange, "queue", name)
        queue = self._vhost.queues.get(name)
        key = name if not method.queue and not method.routing_key else method.routing_key
        was_bound = False
        if queue is not None and method.exchange in self._vhost.exchanges:
            was_bound = self._vhost.unbind(method.exchange, queue, key, method.arguments, self._connection)
        if not was_bound:
            self._warn_about_unbind(method.exchange, f"queue '{name}'", key)
        self._reply_when_durable(spec.QueueUnbindOk(), queue is None or queue.is_durable)

    # -- basic -------------------------------------------------------------------------------------------------------

    def limit_prefetch(self, method: spec.BasicQos) -> None:
        if method.prefetch_size:
            raise NotImplementedHere(f"prefetch_size!=0 ({method.prefetch_size})")
        self.channel.limit_prefetch(method.prefetch_count, method.global_)
        self._reply(spec.BasicQosOk())

    def consume(self, method: spec.BasicConsume) -> None:
        if method.queue == DIRECT_REPLY_TO:
            self._consume_replies(method)
            return
        name = self._queue_name(method.queue)
        self._require("read", "queue", name)
        queue = self._vhost.queue(name, self._connection)
        validate_consumer_arguments(f"queue '{queue.name}' in vhost '{queue.vhost}'", method.arguments)
        if not method.consumer_tag and isinstance(queue, Stream) and is_tracked(method.arguments):
            raise PreconditionFailed(f"{TRACKING} needs a consumer tag of the client's own")
        tag = method.consumer_tag or _generate_tag()
        priority = int(method.arguments.get("x-priority", 0))
        consumer = self.channel.consume(queue, tag, method.no_ack, method.exclusive, priority, method.arguments)
        if not method.no_wait:
            self._reply(spec.BasicConsumeOk(tag))
        self.channel.start(consumer)

    def _consume_replies(self, method: spec.BasicConsume) -> None:
        if not method.no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        if self.channel.reply_queue is not None:
            raise PreconditionFailed("reply consumer already set")
        for name in (RATE, FILTER):
            if name in method.arguments:
                raise PreconditionFailed(f"reply consumer cannot have {name}")
        tag = method.consumer_tag or _generate_tag()
        self.channel.start_replies(ReplyQueue(self.channel, tag))
        if not method.no_wait:
            self._reply(spec.BasicConsumeOk(tag))

    def cancel(self, method: spec.BasicCancel) -> None:
        self.channel.cancel(method.consumer_tag)
        if not method.no_wait:
            self._reply(spec.BasicCancelOk(method.consumer_tag))

    def get(self, method: spec.BasicGet) -> None:
        name = self._queue_name(method.queue)
        self._require("read", "queue", name)
        queue = self._vhost.queue(name, self._connection)
        if queue.needs_page():
            self._session.hold_reply()
            queue.await_page(partial(self._get_again, method))
        elif not self.channel.get(queue, method.no_ack):
            self._reply(spec.BasicGetEmpty())

    def _get_again(self, method: spec.BasicGet) -> None:
        self._session.resume_when(NOTHING, partial(self._session.retry, self.number, method))

    def recover(self, method: spec.BasicRecover) -> None:
        self._recover(method.requeue)
        self._reply(spec.BasicRecoverOk())

    def recover_async(self, method: spec.BasicRecoverAsync) -> None:
        self._recover(method.requeue)

    def _recover(self, requeue: bool) -> None:
        if not requeue:
            raise NotImplementedHere("requeue=false")
        self.channel.recover()

    # -- confirms and transactions -----------------------------------------------------------------------------------

    def select_confirms(self, method: spec.ConfirmSelect) -> None:
        self.channel.select_confirms()
        if not method.no_wait:
            self._reply(spec.ConfirmSelectOk())

    def select_transactions(self, method: spec.TxSelect) -> None:
        self.channel.select_transactions()
        self._reply(spec.TxSelectOk())

    def commit(self, method: spec.TxCommit) -> None:
        level = self.channel.commit()
        self._reply_when_durable(spec.TxCommitOk(), False, level)

    def rollback(self, method: spec.TxRollback) -> None:
        self.channel.rollback()
        self._reply(spec.TxRollbackOk())

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _reply(self, method: spec.Method) -> None:
        self._outbox.send(self.number, method)

    def _reply_when_durable(self, reply: spec.Method, is_durable: bool = False, level: int = NOTHING) -> None:
        """Reply now if the method left no durable work, else hold the reply, and the client, until that is done.

        `is_durable`: the reply is about a durable object that was declared or deleted before, perhaps by another
        client, and that change may not be durable yet.
        """
        if self._log.work == self._work_before and (not is_durable or self._session.broker.are_definitions_durable()):
            self._reply(reply)
            return
        self._session.hold_reply()
        self._session.resume_when(max(level, self._log.reply_level), partial(self._reply_if_open, reply))

    def _reply_if_open(self, method: spec.Method) -> None:
        """Reply, unless the channel was closed meanwhile."""
        if self._session.channels.get(self.number) is self:
            self._reply(method)

    def _warn(self, kind: str, text: str) -> None:
        self._session.broker.warning_log.warn(kind, text)

    def _warn_about_key(self, source: str, key: str) -> None:
        if self._vhost.exchange(source).type == "topic" and (word := find_partial_wildcard(key)) is not None:
            self._warn(
                "wildcard",
                f"binding key '{key}' of topic exchange '{source}': '{word}' matches only itself; "
                "'*' and '#' are wildcards only as whole words",
            )

    def _warn_about_unbind(self, source: str, destination: str, key: str) -> None:
        self._warn("unbind", f"unbind of {destination} from exchange '{source}', key '{key}': no such binding")

    def _queue_name(self, name: str) -> str:
        """Return the name; an empty one means the queue that this channel declared last."""
        if name:
            return name
        if self._last_queue is None:
            raise NotFound("no previously declared queue")
        return self._last_queue

    def _require(self, action: str, kind: str, name: str) -> None:
        self._session.broker.users.require(self._user, self._vhost.name, action, kind, name)


def _clean(name: str) -> str:
    """Remove line breaks from a name, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")


def _generate_tag() -> str:
    return "amq.ctag-" + urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()


_HANDLERS: dict[type[spec.Method], Callable[[ChannelMethods, Any], None]] = {
    spec.ChannelFlow: ChannelMethods.flow,
    spec.AccessRequest: ChannelMethods.request_access,
    spec.ExchangeDeclare: ChannelMethods.declare_exchange,
    spec.ExchangeDelete: ChannelMethods.delete_exchange,
    spec.ExchangeBind: ChannelMethods.bind_exchange,
    spec.ExchangeUnbind: ChannelMethods.unbind_exchange,
    spec.QueueDeclare: ChannelMethods.declare_queue,
    spec.QueueDelete: ChannelMethods.delete_queue,
    spec.QueuePurge: ChannelMethods.purge_queue,
    spec.QueueBind: ChannelMethods.bind_queue,
    spec.QueueUnbind: ChannelMethods.unbind_queue,
    spec.BasicQos: ChannelMethods.limit_prefetch,
    spec.BasicConsume: ChannelMethods.consume,
    spec.BasicCancel: ChannelMethods.cancel,
    spec.BasicGet: ChannelMethods.get,
    spec.BasicRecover: ChannelMethods.recover,
    spec.BasicRecoverAsync: ChannelMethods.recover_async,
    spec.ConfirmSelect: ChannelMethods.select_confirms,
    spec.TxSelect: ChannelMethods.select_transactions,
    spec.TxCommit: ChannelMethods.commit,
    spec.TxRollback: ChannelMethods.rollback,
}
