"""Pages and terminal over a real broker: a rule is added on the page, a message is sent, its biography is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pika

import warrenmq
from tests.ui.conftest import LIMIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def live(url: str) -> None:
    """A message in three queues: requeued and acked by another, acked, and taken without ack."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("orders", "fanout", durable=True)
        for queue in ("shipping", "billing", "audit"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "orders")
        properties = pika.BasicProperties(message_id="order-17", delivery_mode=2, headers={"traceparent": TRACE})
        channel.basic_publish("orders", "order.created", b"x" * 2048, properties)
        first, second = connection.channel(), connection.channel()
        first.basic_nack(first.basic_get("shipping")[0].delivery_tag, requeue=True)
        for queue in ("shipping", "billing"):
            second.basic_ack(second.basic_get(queue)[0].delivery_tag)
        second.basic_get("audit", auto_ack=True)


def test_a_rule_of_the_page_keeps_a_message_and_page_and_terminal_tell_its_story(
    chromium: Browser, tmp_path: Path
) -> None:
    with warrenmq.Broker(http=True, data_dir=tmp_path) as broker:
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.goto(broker.http_url + "/")
        page.fill("input[name=username]", "guest")
        page.fill("input[name=password]", "guest")
        page.click("text=Sign in")
        page.wait_for_selector("text=Tracing is off")
        page.click("text=Add rule")
        page.fill("dialog label:has-text('Name') input", "orders")
        page.fill("dialog label:has-text('Exchange') input", "^ord")
        page.click("dialog >> text=Save")
        page.wait_for_selector("tbody tr:has-text('^ord')")

        live(broker.url)

        page.goto(broker.http_url + "/ui/traces.html?queue=audit")
        page.click("tbody a:text-is('order-17')")
        page.wait_for_selector("text=Properties")
        stays = {
            row.split("\t")[0]: row
            for row in page.locator("section:has(h2:text-is('Queues')) tbody tr").all_inner_texts()
        }
        assert stays.keys() == {"shipping", "billing", "audit"}
        assert "acked" in stays["shipping"]
        events = page.locator("section:has(h2:text-is('Events')) .kind").all_inner_texts()
        assert events.count("enqueued") == 3
        assert events.count("delivered") == 4
        assert events.count("acked") == 2
        assert page.inner_text("dd:has-text('0af7651916cd43dd8448eb211c80319c')")
        context.close()

        command = [sys.executable, "-m", "warrenmq", "trace", "--trace-id", TRACE, "--url", broker.http_url]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("Message order-17\n")
