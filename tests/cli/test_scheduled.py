"""`warren scheduled` as a process: lists, shows and cancels messages that wait for their time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from rich.cells import cell_len

import warrenmq
from tests.cli.test_queues import lines, warren
from warrenmq.storage.options import StorageOptions

HOUR = 3_600_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[warrenmq.Broker]:
    small = StorageOptions(window=64 << 10, page=8 << 10, memory_budget=256 << 10, page_size=8 << 10)
    with warrenmq.Broker(http=True, data_dir=tmp_path, storage=small) as broker:
        yield broker


def publish(broker: warrenmq.Broker, count: int, delay: int, key: str = "q") -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number in range(count):
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay + number * 1000})
            channel.basic_publish("", key, b"body %d" % number, properties)


def test_a_scheduled_message_is_listed_shown_and_cancelled(broker: warrenmq.Broker) -> None:
    at = ("--url", broker.http_url)
    assert warren("scheduled", "list", *at) == (0, "no scheduled messages\n", "")
    publish(broker, 2, HOUR)
    code, out, _ = warren("scheduled", "list", *at)
    assert code == 0
    head, first, second = lines(out)
    assert head == ["id", "deliver", "at", "in", "exchange", "key", "bytes"]
    assert (first[0], second[0], first[-3:]) == ("0", "1", ["(default)", "q", "6"])
    code, out, _ = warren("scheduled", "show", "1", *at)
    shown = out.splitlines()
    assert (code, shown[:2]) == (0, ["Scheduled message 1", "exchange (default), key q, 6 bytes"])
    assert shown[2].startswith(("will be delivered in 1 h", "will be delivered in 59 min"))
    assert shown[-2] == "body 1"
    assert warren("scheduled", "cancel", "1", *at) == (0, "scheduled message 1 cancelled\n", "")
    _, out, _ = warren("scheduled", "list", "--vhost", "/", "--json", *at)
    assert [each["id"] for each in json.loads(out)["messages"]] == [0]
    missing = "warren: no scheduled message 1 in vhost '/', it may have been delivered: see `warren scheduled list`\n"
    for command in ("show", "cancel"):
        assert warren("scheduled", command, "1", *at) == (1, "", missing)
    assert warren("scheduled", "list", "--vhost", "nope", *at)[::2] == (
        1,
        "warren: no such vhost, or no access to it: 'nope'\n",
    )


def test_messages_on_disk_are_listed_and_cancelled_for_good(tmp_path: Path, broker: warrenmq.Broker) -> None:
    publish(broker, 1500, HOUR)
    at = ("--url", broker.http_url)
    _, out, _ = warren("scheduled", "list", "--count", "1000", "--json", *at)
    assert [each["id"] for each in json.loads(out)["messages"]] == list(range(1000))
    assert warren("scheduled", "cancel", "700", *at)[0] == 0
    _, out, _ = warren("scheduled", "list", "--count", "3", *at)
    assert "The next 3 of 1,499: raise --count to see more." in out
    broker.stop()
    broker.start()
    assert warren("scheduled", "show", "700", "--url", broker.http_url)[0] == 1
    _, out, _ = warren("scheduled", "show", "701", "--json", "--url", broker.http_url)
    assert json.loads(out)["payload"] == "body 701"


def test_the_table_fits_80_columns_whatever_the_names_are(broker: warrenmq.Broker) -> None:
    publish(broker, 1, 100 * HOUR, "\x1b[2J" + "k" * 200)
    code, out, _ = warren("scheduled", "list", "--url", broker.http_url)
    assert code == 0
    assert [line for line in out.splitlines() if cell_len(line) > 80] == []
    assert "\x1b" not in out
    assert lines(out)[0] == ["id", "deliver", "at", "in", "exchange", "key", "bytes"]
