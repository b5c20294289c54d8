"""`warren queues` and `warren peek` as processes: what they print, and what they say is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from rich.cells import cell_len

import warrenmq
from tests.management.fakes import FakeNode
from tests.management.serving import served
from tests.support.client import Client, ClientChannel
from warrenmq.storage.options import StorageOptions


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def channel(node: FakeNode) -> ClientChannel:
    return Client(node.broker).channel()


@pytest.fixture
def url(node: FakeNode, channel: ClientChannel) -> Iterator[str]:
    with served(node) as url:
        yield url


def warren(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "warrenmq", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WARREN_", "COLUMNS"))}
    environ = inherited | {"PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", env=environ, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def lines(out: str) -> list[list[str]]:
    """The words of each line that has any."""
    return [line.split() for line in out.splitlines() if line.strip(" ─")]


def test_queues_are_listed_with_their_messages(url: str, channel: ClientChannel) -> None:
    assert warren("queues", "--url", url) == (0, "no queues\n", "")
    channel.publish_all("abc", channel.declare("orders").name)
    channel.get(channel.declare("orders"), no_ack=False)
    channel.declare("logs", durable=True, arguments={"x-queue-type": "stream"})
    code, out, log = warren("queues", "--url", url)
    assert (code, log) == (0, "")
    assert lines(out) == [
        ["name", "type", "ready", "unacked", "retrying", "consumers"],
        ["logs", "stream", "0", "0", "0", "0"],
        ["orders", "classic", "2", "1", "0", "0"],
        ["queues:", "2,", "ready:", "2,", "unacked:", "1,", "retrying:", "0"],
    ]


def test_virtual_hosts_and_policies_are_shown_where_there_are_some(url: str, node: FakeNode) -> None:
    Client(node.broker, "other").channel().declare("q")
    node.broker.vhosts["other"].policies.set("limit", "", {"max-length": 5})
    _, out, _ = warren("queues", "--url", url)
    assert lines(out)[:2] == [
        ["vhost", "name", "type", "ready", "unacked", "retrying", "consumers", "policy"],
        ["other", "q", "classic", "0", "0", "0", "0", "limit"],
    ]
    assert warren("queues", "--vhost", "/", "--url", url)[1] == "no queues\n"
    code, out, _ = warren("queues", "--vhost", "other", "--json", "--url", url)
    assert (code, [each["policy"] for each in json.loads(out)]) == (0, ["limit"])


def test_of_many_queues_those_with_the_most_messages_are_listed(url: str, channel: ClientChannel) -> None:
    for number in range(300):
        channel.declare(f"q{number}")
    channel.publish_all("ab", "q217")
    channel.publish_all("a", "q3")
    _, out, _ = warren("queues", "--count", "2", "--url", url)
    assert [words[0] for words in lines(out)[1:3]] == ["q217", "q3"]
    assert "queues: 300, ready: 3," in out
    assert "The 2 with the most messages: raise --count to see more." in out
    assert len(lines(warren("queues", "--url", url)[1])) == 1 + 200 + 2


def test_a_peek_prints_properties_headers_and_body(url: str, channel: ClientChannel) -> None:
    channel.declare("q")
    body = json.dumps({"order": 17, "name": "é"}, ensure_ascii=False).encode()
    channel.publish(body, "q", content_type="application/json", message_id="m1", headers={"region": "eu", "tries": 2})
    channel.publish(b"two\nlines\x1b[2J\t.", "q")
    channel.publish(b"\x00\xffbinary", "q")
    code, out, log = warren("peek", "q", "--url", url)
    assert (code, log) == (0, "")
    assert out == (
        "Message 0\n"
        "exchange (default), key q, 27 bytes\n"
        "properties content_type: application/json\n"
        "           message_id: m1\n"
        "headers    region: eu\n"
        "           tries: 2\n"
        "{\n"
        '  "order": 17,\n'
        '  "name": "é"\n'
        "}\n"
        "\n"
        "Message 1\n"
        "exchange (default), key q, 15 bytes\n"
        "two\n"
        "lines\\x1b[2J   .\n"
        "\n"
        "Message 2\n"
        "exchange (default), key q, 8 bytes\n"
        "00000000  00 ff 62 69 6e 61 72 79                          ..binary\n"
        "\n"
    )


def test_the_form_and_the_length_of_bodies_can_be_chosen(url: str, channel: ClientChannel) -> None:
    channel.declare("q")
    channel.publish(b'{"a": [1, 2]}', "q")
    channel.publish(b"\x00\xff", "q")
    _, out, _ = warren("peek", "q", "--body", "text", "--count", "1", "--truncate", "6", "--url", url)
    assert out.splitlines()[2:4] == ['{"a": ', "… 7 more bytes: raise --truncate"]
    _, out, _ = warren("peek", "q", "--body", "hex", "--count", "1", "--url", url)
    assert out.splitlines()[2].startswith("00000000  7b 22 61 22 3a 20 5b 31")
    _, out, _ = warren("peek", "q", "--body", "text", "--from", "1", "--url", url)
    assert out.splitlines()[2] == "\\x00\\xff"


def test_a_peek_says_how_to_go_on(url: str, node: FakeNode, channel: ClientChannel) -> None:
    other = Client(node.broker, "other").channel()
    other.declare("my queue", arguments={"x-max-priority": 5})
    for priority in (1, 5, 3):
        other.publish(b"%d" % priority, "my queue", priority=priority)
    arguments = ("peek", "my queue", "--vhost", "other", "--url", url)
    _, out, _ = warren(*arguments, "--count", "2")
    assert [line for line in out.splitlines() if line.startswith("Message")] == ["Message 5:1", "Message 3:2"]
    assert out.splitlines()[-1] == "There are more: warren peek 'my queue' --from 1:0 --vhost other"
    _, out, _ = warren(*arguments, "--from", "1:0")
    assert [line for line in out.splitlines() if line.startswith("Message")] == ["Message 1:0"]
    channel.declare("empty")
    assert warren("peek", "empty", "--url", url) == (0, "no messages wait in queue empty\n", "")
    assert warren("peek", "empty", "--from", "7", "--url", url)[1] == (
        "no messages wait at this position or after it in queue empty\n"
    )


def test_messages_that_wait_for_a_retry_are_shown(url: str, channel: ClientChannel) -> None:
    queue = channel.declare("q", arguments={"x-retry-max": 3})
    assert warren("peek", "q", "--retrying", "--url", url)[1] == "no messages wait for a retry in queue q\n"
    channel.publish_all("ab", "q")
    for tag in (1, 2):
        channel.get(queue, no_ack=False)
        channel.reject(tag)
    code, out, _ = warren("peek", "q", "--retrying", "--count", "1", "--url", url)
    found = out.splitlines()
    assert (code, found[0], found[3:5]) == (0, "Message", ["headers    x-retry-reason: rejected", "a"])
    assert found[2].startswith("delivery attempts: 1, next attempt now (19")  # the clock of this broker stands
    assert found[-1].startswith("There are more: warren peek q --from ")
    assert found[-1].endswith(" --retrying")


def test_refusals_are_lines_on_stderr(url: str, channel: ClientChannel) -> None:
    channel.declare("q")
    for arguments, code, text in (
        (("peek", "nope"), 1, "no queue 'nope' in vhost '/', or no access to it: see `warren queues`"),
        (("peek", "q", "--from", "x"), 1, "'from' must be a position, such as 1042"),
        (("peek", "q", "--count", "0"), 1, "'count' must be a whole number from 1 to 1000"),
        (("queues", "--vhost", "nope"), 1, "no such vhost, or no access to it: 'nope'"),
        (("queues", "--user", "plain:secret"), 2, "needs the tag 'administrator'"),
        (("queues", "--user", "guest:wrong"), 2, "unknown user or wrong password"),
    ):
        found = warren(*arguments, "--url", url)
        assert (found[0], found[1]) == (code, "")
        assert found[2].startswith("warren: ")
        assert text in found[2]
    assert "cannot reach a broker at http://127.0.0.1:1" in warren("queues", "--url", "http://127.0.0.1:1")[2]


def test_the_tables_fit_80_columns_whatever_the_names_are(url: str, node: FakeNode, channel: ClientChannel) -> None:
    node.broker.add_vhost("v" * 200)
    other = Client(node.broker, "v" * 200)
    other.channel().declare("受注" * 40)
    node.broker.vhosts["v" * 200].policies.set("p" * 200, "", {"max-length": 5})
    channel.publish_all("abc", channel.declare("\x1b[2J").name)
    channel.declare("[red]")
    code, out, _ = warren("queues", "--url", url)
    assert code == 0
    assert [line for line in out.splitlines() if cell_len(line) > 80] == []
    assert "\x1b" not in out
    assert "[red]" in out


def test_a_durable_queue_that_is_paged_out_is_shown_and_stays_as_it_is(tmp_path: Path) -> None:
    def counters(url: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(warren("queues", "--json", "--url", url)[1])[0]
        return found

    small = StorageOptions(window=64 << 10, page=8 << 10, memory_budget=256 << 10, page_size=8 << 10)
    with (
        warrenmq.Broker(http=True, data_dir=tmp_path, storage=small) as broker,
        pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
    ):
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(2000):
            channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        before = counters(broker.http_url)
        assert before["messages_paged_out"] > 1000
        code, out, _ = warren("peek", "q", "--from", "1500", "--count", "3", "--json", "--url", broker.http_url)
        found = json.loads(out)
        assert (code, [each["payload"] for each in found["messages"]]) == (0, ["1500", "1501", "1502"])
        assert (found["next"], [each["redelivered"] for each in found["messages"]]) == ("1503", [False] * 3)
        _, out, _ = warren("peek", "q", "--count", "1000", "--json", "--url", broker.http_url)
        assert [each["payload"] for each in json.loads(out)["messages"]] == [str(n) for n in range(1000)]
        assert counters(broker.http_url) == before
        method, _, body = channel.basic_get("q")
        assert method is not None
        assert (method.redelivered, method.message_count, body) == (False, 1999, b"0")
