"""Transactions as a block: commit at its end, roll back if it raises.

Everything published and acked on the channel inside the block happens at the commit, or not at all. After a rollback
the broker redelivers what the block had acked. Use the channel from one thread or task at a time meanwhile: a second
publisher would be in the same transaction. If the connection is lost, the broker has rolled back and the block raises
ConnectionLost.

Written by tools/unasync.py from aio/transaction.py: change that, then run it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from warrenmq.client.errors import ChannelClosed, ClientError, ConnectionLost, Misuse

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery

_log = logging.getLogger("warrenmq.client")


class _TransactionalChannel(Protocol):
    """What the block needs of a channel."""

    transaction_open: bool

    def tx_select(self) -> None: ...
    def tx_commit(self) -> None: ...
    def tx_rollback(self, *, requeue: bool = False) -> None: ...


class Transaction:
    """`with channel.transaction(): ...`

    >>> from warrenmq import client
    >>> with client.connect(url) as connection:
    ...     channel = connection.channel()
    ...     _ = channel.queue_declare("transaction-example", auto_delete=True)
    ...     with channel.transaction():
    ...         _ = channel.publish("", "transaction-example", b"both")
    ...         _ = channel.publish("", "transaction-example", b"or neither")
    ...     print(channel.queue_purge("transaction-example"))
    2
    """

    __slots__ = ("_channel", "_deliveries", "_redeliver")

    def __init__(
        self, channel: _TransactionalChannel, deliveries: Sequence[Delivery] = (), redeliver: bool = True
    ) -> None:
        if any(each.channel is not channel for each in deliveries):
            raise Misuse(
                "a delivery is acked on the channel that received it: use delivery.channel.transaction(delivery)"
            )
        self._channel = channel
        self._deliveries = deliveries
        self._redeliver = redeliver

    def __enter__(self) -> Any:
        """Return the channel."""
        if self._channel.transaction_open:
            raise Misuse("a transaction is open on this channel: AMQP has no transaction inside another")
        self._channel.transaction_open = True
        try:
            self._channel.tx_select()
            for each in self._deliveries:
                if each.is_stale:
                    raise ConnectionLost(f"the connection of {each!r} was lost: the broker redelivers it")
        except BaseException:
            self._channel.transaction_open = False
            raise
        return self._channel

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for each in self._deliveries:
                if not each.is_settled:
                    each.ack()  # also to be rolled back, which requeues what was settled
        except ClientError:
            if error is None:
                raise
        finally:
            self._channel.transaction_open = False
        if error is None:
            self._channel.tx_commit()
            return
        try:
            self._channel.tx_rollback(requeue=self._redeliver)
        except (ChannelClosed, ConnectionError):
            pass  # the broker rolls back when the channel or the connection ends
        except ClientError as failure:
            _log.warning("the rollback of a transaction failed: %s", failure)
