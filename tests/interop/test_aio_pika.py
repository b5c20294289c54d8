"""aio-pika, written as its users write it, and its robust connection losing the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aio_pika
import pytest
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError
from aio_pika.patterns import RPC, Master
from aiormq.exceptions import ChannelLockedResource

from .clients.contract import PATIENCE
from .conftest import Namer
from .proxy import Proxy

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    async def bounded() -> Result:
        async with asyncio.timeout(5 * PATIENCE):
            return await work

    return asyncio.run(bounded())


def test_quickstart_publishes_and_iterates(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=2)
            queue = await channel.declare_queue(name("queue"), auto_delete=True)
            bodies = [b"%d" % number for number in range(10)]
            for body in bodies:
                await channel.default_exchange.publish(aio_pika.Message(body), routing_key=queue.name)
            received = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        received.append(message.body)
                    if len(received) == len(bodies):
                        break
            assert received == bodies

    run(work())


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_exchange_of_each_type_can_be_bound(broker_url: str, name: Namer, kind: str) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(name("exchange"), aio_pika.ExchangeType(kind), durable=True)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(exchange, routing_key="key", arguments={"x-match": "any", "a": 1})
            await exchange.publish(aio_pika.Message(b"body", headers={"a": 1}), routing_key="key")
            message = await queue.get(timeout=PATIENCE)
            assert message is not None
            assert (message.body, message.exchange, message.routing_key) == (b"body", exchange.name, "key")
            await message.ack()
            await queue.unbind(exchange, routing_key="key", arguments={"x-match": "any", "a": 1})
            assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 0

    run(work())


def test_unroutable_message_raises(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            with pytest.raises(DeliveryError) as failure:
                await channel.default_exchange.publish(aio_pika.Message(b"lost"), routing_key=name("missing"))
            assert failure.value.frame.reply_code == 312

    run(work())


def test_returned_message_is_given_back(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            came_back: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            channel.return_callbacks.add(lambda _channel, message: came_back.set_result(message))
            await channel.default_exchange.publish(aio_pika.Message(b"lost"), routing_key=name("missing"))
            assert (await came_back).body == b"lost"

    run(work())


def test_thousand_publishes_at_once_are_confirmed(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name("queue"))
            await asyncio.gather(
                *(
                    channel.default_exchange.publish(aio_pika.Message(b"%d" % number), routing_key=queue.name)
                    for number in range(1000)
                )
            )
            assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 1000

    run(work())


def test_failed_processing_rejects_or_requeues(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name("queue"))
            await channel.default_exchange.publish(aio_pika.Message(b"work"), routing_key=queue.name)
            message = await queue.get(timeout=PATIENCE)
            assert message is not None
            assert not message.redelivered
            with pytest.raises(ZeroDivisionError):
                async with message.process(requeue=True):
                    raise ZeroDivisionError
            again = await queue.get(timeout=PATIENCE)
            assert again is not None
            assert again.redelivered
            with pytest.raises(ZeroDivisionError):
                async with again.process(requeue=False):
                    raise ZeroDivisionError
            assert await queue.get(fail=False) is None

    run(work())


def test_transaction_commits_or_rolls_back(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        async with await aio_pika.connect(broker_url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name("queue"))
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"kept"), routing_key=queue.name)
            with pytest.raises(ZeroDivisionError):
                async with channel.transaction():
                    await channel.default_exchange.publish(aio_pika.Message(b"dropped"), routing_key=queue.name)
                    raise ZeroDivisionError
            message = await queue.get(no_ack=True, timeout=PATIENCE)
            assert message is not None
            assert message.body == b"kept"
            assert await queue.get(fail=False) is None

    run(work())


def test_errors_have_their_own_classes(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        queue_name = name("queue")
        async with await aio_pika.connect(broker_url) as connection, await aio_pika.connect(broker_url) as other:
            channel = await connection.channel()
            with pytest.raises(ChannelNotFoundEntity, match="no queue"):
                await channel.declare_queue(name("missing"), passive=True)
            channel = await connection.channel()
            await channel.declare_queue(queue_name, exclusive=True)
            with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'auto_delete'"):
                await channel.declare_queue(queue_name, exclusive=True, auto_delete=True)
            with pytest.raises(ChannelLockedResource, match="cannot obtain exclusive access"):
                await (await other.channel()).declare_queue(queue_name)
            with pytest.raises(ChannelClosed, match="amq"):
                await (await other.channel()).declare_exchange("amq.mine")

    run(work())


def test_remote_procedure_calls(broker_url: str, name: Namer) -> None:
    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async def divide(*, x: int, y: int) -> float:
        return x / y

    async def work() -> None:
        async with await aio_pika.connect_robust(broker_url) as connection:
            rpc = await RPC.create(await connection.channel())
            await rpc.register(name("multiply"), multiply, auto_delete=True)
            divider = name("divide")
            await rpc.register(divider, divide, auto_delete=True)
            multiplier = divider.replace("divide", "multiply")
            answers = await asyncio.gather(
                *(rpc.call(multiplier, kwargs={"x": number, "y": 3}) for number in range(20))
            )
            assert answers == [number * 3 for number in range(20)]
            with pytest.raises(ZeroDivisionError):
                await rpc.call(divider, kwargs={"x": 1, "y": 0})
            await rpc.close()

    run(work())


def test_master_sends_tasks_to_workers(broker_url: str, name: Namer) -> None:
    async def work() -> None:
        done: asyncio.Queue[int] = asyncio.Queue()

        async def task(*, number: int) -> None:
            await done.put(number)

        async with await aio_pika.connect_robust(broker_url) as connection:
            master = Master(await connection.channel())
            worker = await master.create_worker(name("tasks"), task, auto_delete=True)
            for number in range(20):
                await master.create_task(worker.queue.name, {"number": number})
            assert sorted([await done.get() for _ in range(20)]) == list(range(20))
            await worker.close()

    run(work())


def test_robust_connection_restores_its_topology_after_a_cut(broker_url: str, proxy: Proxy, name: Namer) -> None:
    async def work() -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await received.put(message.body)

        robust = await aio_pika.connect_robust(proxy.url, reconnect_interval=0.1)
        channel = await robust.channel()
        await channel.set_qos(prefetch_count=5)
        exchange = await channel.declare_exchange(name("exchange"), auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "key")
        await queue.consume(on_message)
        await exchange.publish(aio_pika.Message(b"before"), "key")
        assert await received.get() == b"before"
        for number in range(2):
            came_back = asyncio.Event()
            robust.reconnect_callbacks.add(lambda *_: came_back.set())  # noqa: B023
            proxy.cut()
            await came_back.wait()
            # Exclusive queue, auto-delete exchange, binding and consumer went with the connection and are there again.
            body = b"after cut %d" % number
            async with await aio_pika.connect(broker_url) as other:
                sender = await other.channel()
                target = await sender.get_exchange(exchange.name)
                await target.publish(aio_pika.Message(body), "key")
                assert await received.get() == body
        await robust.close()

    run(work())
