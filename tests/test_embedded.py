"""A private broker: in a thread, in the caller's loop, through the pytest fixture."""

import ast
import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import aio_pika
import httpx
import pika
import pytest

import warrenmq
from tests.support.ports import free_port
from warrenmq.node import StartError


def roundtrip(url: str) -> bytes | None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"hello")
        return channel.basic_get(queue, auto_ack=True)[2]


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _note_other_brokers() -> None:
    """Brokers that other tests of the same process keep running do not count here."""
    _before.clear()
    _before.update(threading.enumerate())


def broker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("warrenmq") and thread not in _before]


def test_clients_reach_a_broker_in_a_thread() -> None:
    with warrenmq.Broker() as broker:
        assert broker.url == f"amqp://guest:guest@{broker.host}:{broker.port}/"
        assert roundtrip(broker.url) == b"hello"


def test_clients_reach_a_broker_in_the_callers_loop() -> None:
    async def scenario() -> bytes:
        async with warrenmq.Broker() as broker, await aio_pika.connect(broker.url) as connection:
            assert broker_threads() == []
            channel = await connection.channel()
            queue = await channel.declare_queue("", exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"hello"), queue.name)
            message = await queue.get(no_ack=True)
            return message.body

    assert asyncio.run(scenario()) == b"hello"


def test_queues_show_their_messages() -> None:
    with warrenmq.Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        assert broker.queues() == {}
        channel = connection.channel()
        channel.queue_declare("q")
        for body in (b"a", b"b", b"c"):
            channel.basic_publish("", "q", body)
        channel.basic_get("q")
        view = broker.queues()["q"]
        assert (view.messages_ready, view.messages_unacked, view.published) == (2, 1, 3)
        with pytest.raises(KeyError, match="no virtual host 'other'"):
            broker.queues("other")


def test_queues_show_their_messages_in_the_callers_loop() -> None:
    async def scenario() -> dict[str, int]:
        async with warrenmq.Broker() as broker, await aio_pika.connect(broker.url) as connection:
            await (await connection.channel()).declare_queue("q")
            return {name: view.messages_ready for name, view in broker.queues().items()}

    assert asyncio.run(scenario()) == {"q": 0}


def test_two_brokers_share_nothing() -> None:
    with warrenmq.Broker() as one, warrenmq.Broker() as other:
        assert one.port != other.port
        with pika.BlockingConnection(pika.URLParameters(one.url)) as connection:
            connection.channel().queue_declare("mine")
        with pika.BlockingConnection(pika.URLParameters(other.url)) as connection:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                connection.channel().queue_declare("mine", passive=True)
            assert closed.value.reply_code == 404


def test_leaving_the_block_ends_the_thread_and_frees_the_port() -> None:
    port = free_port()
    with warrenmq.Broker(port=port):
        assert len(broker_threads()) == 1
    assert broker_threads() == []
    with warrenmq.Broker(port=port) as again:
        assert again.port == port


def test_connected_clients_are_notified_that_the_broker_stops() -> None:
    with warrenmq.Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=10)
    assert closed.value.reply_code == 320


def test_stopping_twice_is_stopping_once() -> None:
    broker = warrenmq.Broker().start()
    broker.stop()
    broker.stop()
    assert not broker.is_running


def test_broker_can_be_started_again() -> None:
    broker = warrenmq.Broker()
    for _ in range(2):
        with broker:
            assert roundtrip(broker.url) == b"hello"


def test_starting_a_running_broker_is_refused() -> None:
    with warrenmq.Broker() as broker, pytest.raises(RuntimeError, match="already running"):
        broker.start()


def test_what_keeps_it_from_starting_is_raised_in_the_caller_and_leaves_no_thread() -> None:
    with warrenmq.Broker() as broker:
        with pytest.raises(StartError, match=str(broker.port)):
            warrenmq.Broker(port=broker.port).start()
        assert len(broker_threads()) == 1


def test_what_keeps_it_from_starting_is_raised_in_the_callers_loop() -> None:
    async def scenario() -> None:
        async with warrenmq.Broker() as broker:
            with pytest.raises(StartError):
                await warrenmq.Broker(port=broker.port).astart()

    asyncio.run(scenario())


def test_address_of_a_broker_that_does_not_run_is_refused_with_how_to_run_it() -> None:
    with pytest.raises(RuntimeError, match=r"with warrenmq\.Broker"):
        _ = warrenmq.Broker().url


def test_error_inside_the_block_passes_through_and_the_broker_stops() -> None:
    with pytest.raises(ZeroDivisionError), warrenmq.Broker():
        _ = 1 / 0
    assert broker_threads() == []


def test_http_is_there_when_asked_for() -> None:
    with warrenmq.Broker(http=True) as broker:
        assert httpx.get(broker.http_url + "/healthz", timeout=30).json() == {"status": "ready"}
    with warrenmq.Broker() as broker, pytest.raises(RuntimeError, match="http=True"):
        _ = broker.http_url


def test_each_form_is_stopped_by_its_own_way() -> None:
    async def scenario() -> None:
        async with warrenmq.Broker() as broker:
            with pytest.raises(RuntimeError, match="astop"):
                broker.stop()
        await broker.astop()
        with warrenmq.Broker() as threaded, pytest.raises(RuntimeError, match="thread"):
            await threaded.astop()

    asyncio.run(scenario())


def test_fixture_provides_a_broker_for_a_test(warren: warrenmq.Broker) -> None:
    assert roundtrip(warren.url) == b"hello"


def test_session_fixture_provides_one_broker(warren_session: warrenmq.Broker, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue("warren_session") is warren_session
    assert roundtrip(warren_session.url) == b"hello"


@pytest.mark.parametrize("module", ["warrenmq", "warrenmq.pytest_plugin"])
def test_importing_is_light(module: str, tmp_path: Path) -> None:
    code = f"""
import sys, pytest  # what pytest itself imports is not ours to answer for
before = set(sys.modules)
import {module}
print(sorted(set(sys.modules) - before))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    imported = set(ast.literal_eval(result.stdout))
    assert imported.isdisjoint({"asyncio", "uvloop", "fastapi", "uvicorn", "typer", "warrenmq.node", "warrenmq.core"})


def test_package_refuses_names_it_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Brokre'"):
        _ = warrenmq.Brokre
