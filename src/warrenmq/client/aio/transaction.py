"""Transactions as a block: commit at its end, roll back if it raises.

Everything published and acked on the channel inside the block happens at the commit, or not at all. Use the channel
from one thread or task at a time meanwhile: a second publisher would be in the same transaction. If the connection is
lost, the broker has rolled back and the block raises ConnectionLost.
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

    async def tx_select(self) -> None: ...
    async def tx_commit(self) -> None: ...
    async def tx_rollback(self) -> None: ...


class Transaction:
    """`async with channel.transaction(): ...`

    >>> from warrenmq.client import aio
    >>> async def main():
    ...     async with aio.connect(url) as connection:
    ...         channel = await connection.channel()
    ...         _ = await channel.queue_declare("transaction-example", auto_delete=True)
    ...         async with channel.transaction():
    ...             _ = await channel.publish("", "transaction-example", b"both")
    ...             _ = await channel.publish("", "transaction-example", b"or neither")
    ...         print(await channel.queue_purge("transaction-example"))
    >>> asyncio.run(main())
    2
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: _TransactionalChannel) -> None:
        self._channel = channel

    async def __aenter__(self) -> None:
        if self._channel.transaction_open:
            raise Misuse("a transaction is open on this channel: AMQP has no transaction inside another")
        self._channel.transaction_open = True
        try:
            await self._channel.tx_select()
        except BaseException:
            self._channel.transaction_open = False
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.transaction_open = False
        if error is None:
            await self._channel.tx_commit()
            return
        try:
            await self._channel.tx_rollback()
        except (ChannelClosed, ConnectionError):
            pass  # the broker rolls back when the channel or the connection ends
        except ClientError as failure:
            _log.warning("the rollback of a transaction failed: %s", failure)
