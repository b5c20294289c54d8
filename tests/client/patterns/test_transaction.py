"""The block of a transaction: what is called when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq.client.aio.transaction import Transaction as AsyncTransaction
from warrenmq.client.blocking.transaction import Transaction
from warrenmq.client.errors import ConnectionLost, Misuse

from .making import count_of


class FakeChannel:
    """Notes what is called; `fails` names the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.transaction_open = False
        self.called: list[str] = []
        self._fails = fails

    def tx_select(self) -> None:
        self._call("select")

    def tx_commit(self) -> None:
        self._call("commit")

    def tx_rollback(self, *, requeue: bool = False) -> None:
        self._call("rollback")

    def _call(self, what: str) -> None:
        self.called.append(what)
        if what == self._fails:
            raise ConnectionLost(f"lost at {what}")


class FakeAsyncChannel(FakeChannel):
    async def tx_select(self) -> None:  # type: ignore[override]
        self._call("select")

    async def tx_commit(self) -> None:  # type: ignore[override]
        self._call("commit")

    async def tx_rollback(self, *, requeue: bool = False) -> None:  # type: ignore[override]
        self._call("rollback")


def enter(kind: str, channel: Any, error: Exception | None = None, inner: Any = None) -> None:
    """Run a block that raises the error, if any."""
    if kind == "blocking":
        with Transaction(channel):
            if inner is not None:
                inner()
            if error is not None:
                raise error
        return

    async def work() -> None:
        async with AsyncTransaction(channel):
            if inner is not None:
                await inner()
            if error is not None:
                raise error

    asyncio.run(work())


@pytest.fixture(params=["blocking", "aio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def channel_of(kind: str, fails: str = "") -> FakeChannel:
    return FakeChannel(fails) if kind == "blocking" else FakeAsyncChannel(fails)


def test_block_that_ends_well_is_committed(kind: str) -> None:
    channel = channel_of(kind)
    enter(kind, channel)
    assert channel.called == ["select", "commit"]


def test_block_that_raises_is_rolled_back_and_the_error_goes_on(kind: str) -> None:
    channel = channel_of(kind)
    with pytest.raises(KeyError):
        enter(kind, channel, KeyError("mine"))
    assert channel.called == ["select", "rollback"]
    enter(kind, channel)


def test_error_of_the_block_is_not_hidden_by_a_failed_rollback(kind: str) -> None:
    with pytest.raises(KeyError):
        enter(kind, channel_of(kind, fails="rollback"), KeyError("mine"))


@pytest.mark.parametrize("call", ["select", "commit"])
def test_lost_connection_raises_and_the_channel_can_be_used_again(kind: str, call: str) -> None:
    channel = channel_of(kind, fails=call)
    with pytest.raises(ConnectionLost):
        enter(kind, channel)
    assert not channel.transaction_open


def test_transaction_inside_a_transaction_is_misuse(kind: str) -> None:
    channel: Any = channel_of(kind)

    def blocking() -> None:
        Transaction(channel).__enter__()

    async def asynchronous() -> None:
        await AsyncTransaction(channel).__aenter__()

    with pytest.raises(Misuse, match="inside another"):
        enter(kind, channel, inner=blocking if kind == "blocking" else asynchronous)
    assert channel.called == ["select", "rollback"]


# -- with a broker


def test_loss_inside_a_transaction_undoes_it_and_raises(shaky: Any, breaker: Breaker, channel: Any, kept: str) -> None:
    transacted = shaky.channel()

    def work() -> None:
        with transacted.transaction():
            transacted.publish("", kept, b"before the loss")
            breaker.reset()
            breaker.wait_for_connections(2)
            wait_until(lambda: shaky.is_open, "the connection is back")
            transacted.publish("", kept, b"after the loss")

    with pytest.raises(ConnectionLost):
        work()
    with transacted.transaction():
        transacted.publish("", kept, b"anew")
    assert count_of(channel, kept) == 1
    assert channel.get(kept, auto_ack=True).body == b"anew"


def test_delivery_of_a_lost_connection_is_not_processed_in_a_transaction(
    shaky: Any, breaker: Breaker, channel: Any, kept: str
) -> None:
    channel.publish("", kept, b"x")
    wait_until(lambda: count_of(channel, kept) == 1, "it is there")
    transacted = shaky.channel()
    lost = transacted.get(kept)
    breaker.reset()
    breaker.wait_for_connections(2)
    wait_until(lambda: shaky.is_open, "the connection is back")
    with pytest.raises(ConnectionLost, match="redelivers"), transacted.transaction(lost):
        transacted.publish("", kept, b"a copy")
    wait_until(lambda: count_of(channel, kept) == 1, "it is redelivered")
    delivery = transacted.get(kept)
    assert (delivery.body, delivery.redelivered) == (b"x", True)
    with transacted.transaction(delivery):
        transacted.publish("", kept, b"a copy")
    assert channel.get(kept, auto_ack=True).body == b"a copy"
