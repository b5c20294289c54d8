"""Policies of a running broker: those of its settings, and what clients see of a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.traced import TracedProcess
from tests.support.wire import WireChannel

ALTERNATE = {"pattern": "^orders$", "apply-to": "exchanges", "definition": {"alternate-exchange": "amq.fanout"}}


def policies_of(broker: TracedProcess) -> dict[str, Any]:
    _, found = broker.ask("/api/policies")
    return {policy["name"]: policy["definition"] for policy in found}


def test_policies_of_the_settings_are_set_at_each_start(tmp_path: Path) -> None:
    configured = [
        {"name": "limit", "pattern": "^q", "definition": {"max-length": 5}},
        {"name": "elsewhere", "vhost": "nope", "pattern": "", "definition": {"max-length": 5}},
    ]
    environ = {"WARREN_POLICIES": json.dumps(configured)}
    environ["WARREN_OPERATOR_POLICIES"] = '[{"name": "bound", "pattern": "", "definition": {"expires": 9}}]'
    with TracedProcess(tmp_path / "data", environ).ready() as broker:
        assert policies_of(broker) == {"limit": {"max-length": 5}}
        assert broker.ask("/api/operator-policies/%2F/bound")[1]["definition"] == {"expires": 9}
        assert "policy 'elsewhere' of the settings skipped: no vhost 'nope'" in broker.log()
        body = {"pattern": "^q", "definition": {"max-length": 6}}
        assert broker.ask("/api/policies/%2F/limit", "PUT", body)[0] == 204
        assert broker.ask("/api/policies/%2F/own", "PUT", body)[0] == 201
        assert policies_of(broker) == {"limit": {"max-length": 6}, "own": {"max-length": 6}}
        assert broker.stop() == 0
    with TracedProcess(tmp_path / "data", environ).ready() as broker:
        assert policies_of(broker) == {"limit": {"max-length": 5}, "own": {"max-length": 6}}
        assert broker.ask("/api/policies/%2F/limit", "DELETE")[0] == 204
        assert broker.stop() == 0
    with TracedProcess(tmp_path / "data").ready() as broker:
        assert policies_of(broker) == {"own": {"max-length": 6}}


def lose(channel: WireChannel, body: bytes) -> int:
    """Publish to no queue; return how many messages the alternate has then."""
    channel.publish(body, {"delivery_mode": 2}, exchange="orders", routing_key="nowhere")
    channel.expect("basic.ack")
    count: int = channel.call("queue.declare", queue="lost", passive=True)["message_count"]
    return count


def test_a_client_sees_a_policy_from_its_answer_on_and_after_kill_9(tmp_path: Path) -> None:
    with TracedProcess(tmp_path / "data").ready() as broker, broker.connect() as connection:
        channel = connection.channel()
        channel.call("confirm.select")
        channel.call("exchange.declare", exchange="orders", type="direct", durable=True)
        channel.call("queue.declare", queue="lost", durable=True)
        channel.call("queue.bind", queue="lost", exchange="amq.fanout")
        assert lose(channel, b"0") == 0
        assert broker.ask("/api/policies/%2F/catch", "PUT", ALTERNATE)[0] == 201
        assert lose(channel, b"1") == 1
        broker.kill()
    with TracedProcess(tmp_path / "data").ready() as broker, broker.connect() as connection:
        channel = connection.channel()
        channel.call("confirm.select")
        assert lose(channel, b"2") == 2
        assert broker.ask("/api/policies/%2F/catch", "DELETE")[0] == 204
        assert lose(channel, b"3") == 2
