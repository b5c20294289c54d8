"""rabbitmq-c, through its command-line tools (Debian's amqp-tools)."""

from __future__ import annotations

import shutil
import subprocess

import pika
import pytest

from .conftest import Namer

TOOLS = ("amqp-publish", "amqp-consume", "amqp-get", "amqp-declare-queue", "amqp-delete-queue")

missing = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not there: run `make interop-tools`")


class Tools:
    """The command-line tools, pointed at the broker."""

    def __init__(self, url: str) -> None:
        # The tools take the path of the address for the virtual host's name.
        self._url = url.removesuffix("/")

    def run(self, tool: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [tool, "--url", self._url, *arguments], input=given, capture_output=True, timeout=30, check=False
        )

    def output(self, tool: str, *arguments: str, given: bytes = b"") -> bytes:
        done = self.run(tool, *arguments, given=given)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


@pytest.fixture
def tools(broker_url: str) -> Tools:
    return Tools(broker_url)


@pytest.fixture
def queue(tools: Tools, name: Namer) -> str:
    made = name("queue")
    assert tools.output("amqp-declare-queue", "-q", made, "-d").strip() == made.encode()
    return made


def test_message_published_is_got(tools: Tools, queue: str) -> None:
    tools.output("amqp-publish", "-r", queue, "-b", "hello")
    assert tools.output("amqp-get", "-q", queue) == b"hello"
    assert tools.run("amqp-get", "-q", queue).returncode == 2  # nothing there


@pytest.mark.parametrize("size", [1, 131_064, 131_065, 2_000_000])
def test_body_of_standard_input_arrives_whole(tools: Tools, queue: str, size: int) -> None:
    body = (b"0123456789abcde\xce" * (size // 16 + 1))[:size]
    tools.output("amqp-publish", "-r", queue, given=body)
    assert tools.output("amqp-get", "-q", queue) == body


def test_consumer_runs_a_command_for_each_message(tools: Tools, queue: str) -> None:
    tools.output("amqp-publish", "-r", queue, "-l", given=b"one\ntwo\nthree\n")
    assert tools.output("amqp-consume", "-q", queue, "-c", "3", "cat") == b"one\ntwo\nthree\n"
    assert tools.output("amqp-delete-queue", "-q", queue).strip() == b"0"


def test_consumer_with_prefetch_leaves_the_rest(tools: Tools, queue: str) -> None:
    tools.output("amqp-publish", "-r", queue, "-l", given=b"".join(b"%d\n" % number for number in range(10)))
    assert tools.output("amqp-consume", "-q", queue, "-p", "2", "-c", "4", "cat") == b"0\n1\n2\n3\n"
    assert tools.output("amqp-delete-queue", "-q", queue).strip() == b"6"


def test_consumer_makes_a_queue_of_its_own_and_binds_it(tools: Tools, broker_url: str, name: Namer) -> None:
    exchange = name("exchange")
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel = connection.channel()
    channel.exchange_declare(exchange, "fanout")
    command = ["amqp-consume", "--url", broker_url.removesuffix("/"), "-e", exchange, "-r", "key", "-c", "1", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consumer:
        assert consumer.stderr is not None
        assert consumer.stdout is not None
        # It tells the queue that the server named before it binds it; publish until the message is taken.
        assert b"amq.gen-" in consumer.stderr.readline()
        while consumer.poll() is None:
            channel.basic_publish(exchange, "key", b"caught")
            connection.sleep(0.05)
        assert consumer.stdout.read() == b"caught"
    connection.close()


def test_properties_and_headers_are_sent(tools: Tools, queue: str, broker_url: str) -> None:
    tools.output(
        "amqp-publish", "-r", queue, "-b", "body", "-p", "-C", "text/plain", "-E", "utf-8", "-t", "reply", "-H", "a: b"
    )
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    _method, properties, body = connection.channel().basic_get(queue, auto_ack=True)
    connection.close()
    assert body == b"body"
    assert (properties.delivery_mode, properties.content_type, properties.content_encoding) == (
        2,
        "text/plain",
        "utf-8",
    )
    assert (properties.reply_to, properties.headers) == ("reply", {"a": "b"})


def test_missing_queue_is_an_error(tools: Tools, name: Namer) -> None:
    queue = name("missing")
    done = tools.run("amqp-get", "-q", queue)
    assert done.returncode == 1
    assert f"NOT_FOUND - no queue '{queue}' in vhost '/'" in done.stderr.decode()


def test_wrong_password_is_an_error(tools: Tools, broker_url: str, queue: str) -> None:
    wrong = Tools(broker_url.replace("guest:guest", "guest:wrong"))
    done = wrong.run("amqp-get", "-q", queue)
    assert done.returncode == 1
    assert "ACCESS_REFUSED" in done.stderr.decode()
