"""Attacks without a login: they need an open port only."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import ExitStack

from tests.audit.target import GUEST, PERSISTENT, Attack, Breach, Scale, Target
from tests.support.conversations import CONVERSATIONS, apply_edits
from tests.support.wire import Address, EndOfStream, Refused, WireConnection
from tests.support.wire_format import PROTOCOL_HEADER

HALF_A_REQUEST = b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_A_BODY = HALF_A_REQUEST + b"1\r\nContent-Length: 100000\r\nContent-Type: application/json\r\n\r\n{"
SECURITY_HEADERS = ("x-content-type-options", "x-frame-options", "content-security-policy")


def exhaust_descriptors(target: Target, scale: Scale) -> str:
    """Hold more silent connections than there are descriptors, then let the log roll."""
    count, body = scale.pick(150, 1100), b"x" * 10_000
    with ExitStack() as held, WireConnection(target.address).open() as connection:
        channel = connection.channel()
        channel.call("queue.declare", queue="durable", durable=True)
        channel.call("confirm.select")
        for number in range(count):
            held.enter_context(_silent(target.http_port if number % 2 else target.address.port))
        for _ in range(scale.pick(300, 1200)):
            channel.publish(body, PERSISTENT, routing_key="durable")
            channel.expect("basic.ack")
    return f"{count} silent connections, {scale.pick(3, 12)} MB confirmed meanwhile"


def guess_passwords(target: Target, scale: Scale) -> str:
    """Try many passwords, on many connections at once; the right one must still work for everybody else."""
    attempts, workers = scale.pick(60, 2000), 20
    answered: list[str] = []
    numbers = iter(range(attempts))
    is_over = threading.Event()

    def guess() -> None:
        for number in numbers:
            if is_over.is_set():
                return
            try:
                with WireConnection(
                    Address("127.0.0.1", target.address.port, password=f"wrong-{number}")
                ) as connection:
                    connection.start()
                    connection.log_in({"authentication_failure_close": True})
                    connection.tune()
                    raise Breach("a wrong password got in")
            except (Refused, EndOfStream, OSError) as refused:
                answered.append(type(refused).__name__)

    threads = [threading.Thread(target=guess, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    threads[0].join(scale.pick(2, 4))
    tried, checked = len(answered), int(target.metric("warren_logins_failed_total"))
    with WireConnection(target.address).open():
        pass  # the right password, from the attacker's own address
    if target.ask("GET", "/api/session").status != 200:
        raise Breach("the right password is refused over HTTP while someone guesses over AMQP")
    is_over.set()
    if checked > 20:
        raise Breach(f"{checked} guesses were checked in {scale.pick(2, 4)} seconds")
    return f"{checked} of {tried} guesses checked in {scale.pick(2, 4)} s"


def send_slowly(target: Target, scale: Scale) -> str:
    """Send half a request on many connections; each must be closed."""
    count = scale.pick(40, 500)
    with ExitStack() as held:
        slow = [held.enter_context(_silent(target.http_port)) for _ in range(count)]
        for number, connection in enumerate(slow):
            try:
                connection.sendall(HALF_A_BODY if scale.is_full and number % 2 else HALF_A_REQUEST)
            except OSError:
                continue  # refused already
        for connection in slow:
            connection.settimeout(60)
            try:
                while connection.recv(4096):
                    pass
            except TimeoutError:
                raise Breach("a half-sent request was still open after 60 s") from None
            except OSError:
                continue  # reset
    return f"{count} half-sent requests closed"


def forge_log_lines(target: Target, scale: Scale) -> str:
    """Send names with line breaks and escape sequences wherever a name is logged."""
    evil = "x\n2026-01-01 00:00:00 INFO forged\r\x1b[2J\x1b]0;owned\x07\u2028"
    for user, mechanism in ((evil, "PLAIN"), ("guest", evil[:100])):
        with WireConnection(Address("127.0.0.1", target.address.port, user=user)) as connection:
            connection.start()
            connection.log_in(mechanism=mechanism)
            connection.read_to_end()
    for method, arguments in (
        ("queue.declare", {"queue": evil, "arguments": {"x-max-length": 1, "x-message-ttl": 1}}),
        ("queue.declare", {"queue": evil, "passive": True, "arguments": {evil: 1}}),
        ("exchange.declare", {"exchange": evil, "type": evil[:100]}),
        ("queue.bind", {"queue": evil, "exchange": "amq.topic", "routing_key": evil + "a*"}),
        ("queue.unbind", {"queue": evil, "exchange": "amq.topic", "routing_key": evil}),
        ("basic.consume", {"queue": evil + "missing", "consumer_tag": evil}),
        ("queue.delete", {"queue": evil}),
    ):
        with WireConnection(target.address).open() as connection:
            try:
                connection.channel().call(method, **arguments)
            except Refused:
                continue
    target.ask("GET", "/api/traces/%0a%1b%5b2Jforged")
    lines = [line for line in target.broker.log().splitlines() if line.startswith("2026-01-01 00:00:00 INFO forged")]
    if lines:
        raise Breach(f"a forged line in the log: {lines[0]!r}")
    return "9 places for a name, none reached the log raw"


def rebind_dns(target: Target, scale: Scale) -> str:
    """A page of evil.example whose name now resolves to this machine."""
    evil = {**GUEST, "Host": f"evil.example:{target.http_port}", "Origin": f"http://evil.example:{target.http_port}"}
    for method, path, body in (
        ("GET", "/api/trace-rules", None),
        ("GET", "/", None),
        ("POST", "/api/login", b'{"username": "guest", "password": "guest"}'),
        ("PUT", "/api/trace-rules/evil", b'{"ratio": 1}'),
    ):
        answer = target.ask(method, path, body, evil)
        if answer.status < 400:
            raise Breach(f"{method} {path} with a foreign Host was answered with {answer.status}")
    return "a foreign Host is refused"


def provoke_errors(target: Target, scale: Scale) -> str:
    """Requests that no ordinary client sends: each gets a 4xx with the security headers, none a 500 or a traceback."""
    bodies = [
        rb'{"username": "guest", "password": "\ud800"}',
        rb'{"username": "\ud800", "password": "x"}',
        b'{"username": NaN, "password": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff\xfe",
        b"",
    ]
    rules = [
        b'{"ratio": NaN}',
        b'{"ratio": 1e999}',
        b'{"ratio": -1e-999, "header": {"a": NaN}}',
        json.dumps({"queue": "(" * 1500 + ")" * 1500}).encode(),
        json.dumps({"queue": "(a{1000}){1000}"}).encode(),
        json.dumps({"queue": "a" * 1_000_000}).encode(),
        rb'{"queue": "\ud800"}',
    ]
    paths = [
        "/api/traces?from=0000-01-01T00:00:00Z",
        "/api/traces?from=-1e308&to=1e999",
        "/api/traces?from=nan",
        "/api/traces?limit=99999999999999999999",
        "/api/traces?page=-1&page_size=1e999",
        "/api/traces/%ff%fe",
        "/api/traces/" + "a" * 10_000,
    ]
    requests = [("POST", "/api/login", body) for body in bodies]
    requests += [("PUT", "/api/trace-rules/bad", body) for body in rules]
    requests += [("GET", path, None) for path in paths]
    for method, path, body in requests:
        answer = target.ask(method, path, body)
        shown = f"{method} {path[:60]} {(body or b'')[:60]!r}"
        if answer.status >= 500:
            raise Breach(f"{shown} was answered with {answer.status}: {answer.body[:200]!r}")
        missing = [name for name in SECURITY_HEADERS if name not in answer.headers]
        if missing:
            raise Breach(f"{shown}: the response lacks {missing[0]}")
        listed = target.ask_json("/api/trace-rules")["rules"]
        if answer.status >= 400 and any(rule["name"] == "bad" for rule in listed):
            raise Breach(f"{shown} was refused, and the rule is listed all the same")
        target.ask("DELETE", "/api/trace-rules/bad")
    for _ in range(scale.pick(5, 50)):
        with _silent(target.http_port) as connection:
            connection.sendall(HALF_A_BODY)
    return f"{len(requests)} requests, all refused or answered in form"


def send_malformed_conversations(target: Target, scale: Scale) -> str:
    """The corpus of whole conversations, each cut, swapped and damaged in one place, over real sockets."""
    sessions = 0
    for conversation in CONVERSATIONS:
        _, *frames = apply_edits(conversation, [])
        for place in range(0, len(frames), scale.pick(7, 1)):
            for variant in (
                [*frames[:place], *frames[place + 1 :]],
                [*frames[: place + 1], frames[place], *frames[place + 1 :]],
                [*frames[:place], frames[place][: len(frames[place]) // 2]],
                [*frames[:place], bytes(byte ^ 0x55 for byte in frames[place]), *frames[place + 1 :]],
            ):
                with _silent(target.address.port) as connection:
                    try:
                        connection.sendall(PROTOCOL_HEADER + b"".join(variant))
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass
                    except OSError:
                        pass
                sessions += 1
    if re.search(r"internal error", target.broker.log()):
        raise Breach("a malformed conversation caused an internal error")
    return f"{sessions} damaged conversations"


def _silent(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


SMALL_LOG = {"WARREN_LOG_LIMIT": "1MiB"}

ATTACKS = (
    Attack(
        "descriptors",
        "more silent connections than descriptors, then a rolling log",
        exhaust_descriptors,
        SMALL_LOG,
        128,
    ),
    Attack("guessing", "many passwords on many connections at once", guess_passwords),
    Attack("slow requests", "half-sent HTTP requests, headers and bodies", send_slowly),
    Attack("log injection", "line breaks and escape sequences in names", forge_log_lines),
    Attack("DNS rebinding", "a foreign Host with a matching Origin", rebind_dns),
    Attack("provoked errors", "HTTP requests that no ordinary client sends", provoke_errors, {"WARREN_TRACE": "all"}),
    Attack("malformed frames", "damaged conversations over real sockets", send_malformed_conversations),
)
