"""Attacks by anyone who can log in."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

from tests.audit.target import Attack, Breach, Scale, Target
from tests.support.wire import EndOfStream, Refused, WireConnection
from tests.support.wire_format import BODY, pack_frame, pack_publish

MIB = 1024 * 1024
FRAME = 128 * 1024
LIMIT = 64 * MIB  # the memory limit of the broker in the attacks on memory


def abandon_bodies(target: Target, scale: Scale) -> str:
    """Send most of a large body on several connections, then close them: the memory comes back."""
    count, size = scale.pick(8, 15), scale.pick(16, 100) * MIB
    before = target.resident_bytes()
    for _ in range(count):
        with WireConnection(target.address).open() as connection:
            _send_half(connection, size)
            connection.channel(2)  # all of it has been read
    target.until(lambda: target.metric("warren_connections") <= 1, "the connections are closed")
    grown = target.resident_bytes() - before
    if grown > 4 * size:  # the allocator keeps some of what is freed
        raise Breach(f"{grown / MIB:.0f} MiB are still held by {count} closed connections")
    return f"{count} x {size // MIB} MiB abandoned, {max(0, grown) / MIB:.0f} MiB more than before"


def outgrow_memory_by_bodies(target: Target, scale: Scale) -> str:
    """Hold many unfinished bodies at once."""
    count, size = scale.pick(16, 32), scale.pick(24, 60) * MIB
    before = target.resident_bytes()
    with ExitStack() as held:
        senders = []
        for _ in range(count):
            connection = held.enter_context(WireConnection(target.address).open())
            sender = threading.Thread(target=_send_half, args=(connection, size, True), daemon=True)
            sender.start()
            senders.append(sender)
        return _require_bounded(target, before, senders, f"{count} x {size // MIB} MiB in transit")


def outgrow_memory_by_transactions(target: Target, scale: Scale) -> str:
    """Publish into transactions that are never committed."""
    count, size = scale.pick(8, 12), scale.pick(48, 60) * MIB

    def publish(connection: WireConnection) -> None:
        try:
            channel = connection.channel()
            channel.call("tx.select")
            for _ in range(size // MIB):
                channel.publish(b"x" * MIB, routing_key="nowhere")
        except (OSError, Refused, EndOfStream):
            return

    before = target.resident_bytes()
    with ExitStack() as held:
        senders = []
        for _ in range(count):
            connection = held.enter_context(WireConnection(target.address).open())
            sender = threading.Thread(target=publish, args=(connection,), daemon=True)
            sender.start()
            senders.append(sender)
        return _require_bounded(target, before, senders, f"{count} x {size // MIB} MiB uncommitted")


def stall_by_pattern(target: Target, scale: Scale) -> str:
    """A trace rule that a backtracking engine needs years for, and a queue name that makes it."""
    status = target.ask("PUT", "/api/trace-rules/evil", json.dumps({"queue": "^(a+)+$"}).encode()).status
    if status != 201:
        raise Breach(f"the rule was answered with {status}")
    name = "a" * 200 + "!"
    with WireConnection(target.address).open() as connection:
        channel = connection.channel()
        channel.call("queue.declare", queue=name)
        channel.publish(b"x", routing_key=name)
        channel.barrier(name)
    return "the rule is taken, one publish was matched against it"


def read_popular_id(target: Target, scale: Scale) -> str:
    """Many messages under one id, and six clients that read its biography again and again."""
    count, readers, reads = scale.pick(3_000, 100_000), 6, scale.pick(1, 5)
    with WireConnection(target.address).open() as connection:
        channel = connection.channel()
        channel.call("queue.declare", queue="popular")
        channel.call("basic.consume", queue="popular", no_ack=True)
        one = pack_publish(1, b"x", {"message_id": "popular"}, routing_key="popular")
        for _ in range(count // 500):
            connection.send_bytes(one * 500)
            for _ in range(500):
                channel.content()
    statuses: list[int] = []

    def read() -> None:
        for _ in range(reads):
            statuses.append(target.ask("GET", "/api/traces/popular", timeout=120).status)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    unexpected = [status for status in statuses if status not in (200, 429, 503)]
    if unexpected or 200 not in statuses:
        raise Breach(f"biographies were answered with {sorted(set(statuses))}")
    return f"{count} messages under one id, {len(statuses)} reads"


def touch_event_log(target: Target, scale: Scale) -> str:
    """Bind, purge and delete the broker's own streams, and declare names beside them, as an administrator."""
    target.until(lambda: target.metric("warren_queues") > 1, "the event log exists")
    tried = 0
    for method, arguments in (
        ("queue.delete", {"queue": "warren.events"}),
        ("queue.purge", {"queue": "warren.events"}),
        ("queue.bind", {"queue": "warren.events", "exchange": "amq.fanout"}),
        ("queue.declare", {"queue": "warren.mine"}),
        ("exchange.declare", {"exchange": "warren.mine", "type": "direct"}),
    ):
        with WireConnection(target.address).open() as connection:
            refusal = connection.channel().refused(method, **arguments)
            if refusal.code not in (403, 540):  # 540: no stream can be purged
                raise Breach(f"{method} {arguments} was answered with {refusal}")
        tried += 1
    return f"{tried} ways, all refused"


def declare_without_end(target: Target, scale: Scale) -> str:
    """More queues, exchanges, bindings and consumers than the limits allow."""
    refusals = []
    for method, arguments in (
        ("queue.declare", lambda number: {"queue": f"q{number}", "exclusive": True}),
        ("exchange.declare", lambda number: {"exchange": f"x{number}", "type": "direct", "auto_delete": True}),
        ("queue.bind", lambda number: {"queue": "own", "exchange": "amq.topic", "routing_key": f"k{number}"}),
        ("basic.consume", lambda number: {"queue": "own", "consumer_tag": f"c{number}"}),
    ):
        with WireConnection(target.address).open() as connection:
            channel = connection.channel()
            channel.call("queue.declare", queue="own", exclusive=True)
            try:
                for number in range(200):
                    channel.call(method, **arguments(number))
            except Refused as refused:
                refusals.append(f"{method} {refused.refusal.code}")
            else:
                raise Breach(f"200 times {method} passed a limit of 100")
    return ", ".join(refusals)


def _require_bounded(target: Target, before: int, senders: list[threading.Thread], what: str) -> str:
    """The process stays near its limit, whether publishers wait or are refused."""
    peak = before
    for sender in senders:
        for _ in range(100):
            sender.join(0.02)
            peak = max(peak, target.resident_bytes())
    if peak > before + 3 * LIMIT:
        raise Breach(f"{what}: the process took {peak / MIB:.0f} MiB with a memory limit of {LIMIT // MIB} MiB")
    return f"{what}: at most {peak / MIB:.0f} MiB with a limit of {LIMIT // MIB}"


def _send_half(connection: WireConnection, size: int, ignores_refusals: bool = False) -> None:
    """A publish whose body lacks its last frame."""
    try:
        connection.channel(1)
        start = pack_publish(1, b"", {}, routing_key="nowhere")
        header_at = start.index(b"\x02\x00\x01", 8)
        header = bytearray(start[header_at:])
        header[7 + 4 : 7 + 12] = (size + 1).to_bytes(8, "big")
        connection.send_bytes(start[:header_at] + bytes(header))
        chunk = pack_frame(BODY, 1, b"x" * (FRAME - 8))
        for _ in range(size // (FRAME - 8)):
            connection.send_bytes(chunk)
    except (OSError, Refused, EndOfStream):
        if not ignores_refusals:
            raise


SHORT_MEMORY = {"WARREN_MEMORY_LIMIT": str(LIMIT)}
FEW = {
    "WARREN_MAX_QUEUES": "100",
    "WARREN_MAX_EXCHANGES": "100",
    "WARREN_MAX_BINDINGS": "100",
    "WARREN_CONSUMER_MAX_PER_CHANNEL": "100",
}

ATTACKS = (
    Attack("abandoned bodies", "large bodies that are never finished", abandon_bodies),
    Attack("bodies in transit", "more unfinished bodies than memory", outgrow_memory_by_bodies, SHORT_MEMORY),
    Attack("transactions", "more uncommitted messages than memory", outgrow_memory_by_transactions, SHORT_MEMORY),
    Attack(
        "evil pattern",
        "a trace rule that a backtracking engine cannot finish",
        stall_by_pattern,
        {"WARREN_TRACE": "0.5"},
    ),
    Attack("popular id", "many messages under one id, six readers", read_popular_id, {"WARREN_TRACE": "all"}),
    Attack("event log", "bind, purge and delete warren.events", touch_event_log, {"WARREN_TRACE": "all"}),
    Attack("endless names", "more queues, exchanges, bindings, consumers than allowed", declare_without_end, FEW),
)
