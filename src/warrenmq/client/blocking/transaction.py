"""Transactions as a block: commit on leaving it, roll back when an exception leaves it.

A transaction belongs to its channel: what is published and acked on the channel inside the block happens at the commit,
or not at all. Use the channel from one thread (or task) at a time meanwhile: a second publisher would be in the same
transaction. When the connection is lost inside, the broker has undone everything and the block raises ConnectionLost.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Protocol

from warrenmq.client.errors import ChannelClosed, ClientError, Misuse

_log = logging.getLogger("warrenmq.client")


class _TransactionalChannel(Protocol):
    """What the block needs of a blocking channel."""

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
    ...         _ = channel.publish("", "transaction-example", b"or none")
    ...     channel.queue_purge("transaction-example")
    2
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: _TransactionalChannel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        _begin(self._channel)
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
        except ClientError as failure:
            _report(failure)


def _begin(channel: _TransactionalChannel) -> None:
    if channel.transaction_open:
        raise Misuse("a transaction is open on this channel: AMQP has no transaction inside another")
    channel.transaction_open = True


def _report(failure: ClientError) -> None:
    """The rollback failed, which it may: the broker rolls back by itself when link or channel end."""
    if not isinstance(failure, (ChannelClosed, ConnectionError)):
        _log.warning("a transaction's rollback was not answered: %s", failure)
