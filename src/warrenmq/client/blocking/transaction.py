"""Transactions as a block: commit at its end, roll back if it raises.

Everything published and acked on the channel inside the block happens at the commit, or not at all. Use the channel
from one thread or task at a time meanwhile: a second publisher would be in the same transaction. If the connection is
lost, the broker has rolled back and the block raises ConnectionLost.

Written by tools/unasync.py from aio/transaction.py: change that, then run it.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Protocol

from warrenmq.client.errors import ChannelClosed, ClientError, Misuse

_log = logging.getLogger("warrenmq.client")


class _TransactionalChannel(Protocol):
    """What the block needs of a channel."""

    transaction_open: bool

    def tx_select(self) -> None: ...
    def tx_commit(self) -> None: ...
    def tx_rollback(self) -> None: ...


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

    __slots__ = ("_channel",)

    def __init__(self, channel: _TransactionalChannel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        if self._channel.transaction_open:
            raise Misuse("a transaction is open on this channel: AMQP has no transaction inside another")
        self._channel.transaction_open = True
        try:
            self._channel.tx_select()
        except BaseException:
            self._channel.transaction_open = False
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.transaction_open = False
        if error is None:
            self._channel.tx_commit()
            return
        try:
            self._channel.tx_rollback()
        except (ChannelClosed, ConnectionError):
            pass  # the broker rolls back when the channel or the connection ends
        except ClientError as failure:
            _log.warning("the rollback of a transaction failed: %s", failure)
