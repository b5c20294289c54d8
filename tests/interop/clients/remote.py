"""Clients in other languages, each in one process that takes commands as lines of JSON.

A request is `{"id": 7, "op": "declare_queue", "channel": 3, ...}`; its answer has the same id and either `ok` with the
result, `refused` with scope, code and text, or `failed` with what went wrong. Bytes travel as
`{"$": "bytes", "v": base64}`, instants as `{"$": "time", "v": seconds}`, decimals as `{"$": "decimal", "v": text}`.
The process lives as long as the test session; a client is one connection in it.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from .contract import PATIENCE, Channel, Client, Delivery, Feature, Outcome, QueueState, Refused, Returned, Scope

HERE = Path(__file__).parent.parent
HINT = "run `make interop-tools`"


def to_wire(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$": "bytes", "v": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$": "time", "v": int(value.timestamp())}
    if isinstance(value, Decimal):
        return {"$": "decimal", "v": str(value)}
    if isinstance(value, Mapping):
        return {key: to_wire(each) for key, each in value.items()}
    if isinstance(value, list):
        return [to_wire(each) for each in value]
    return value


def from_wire(value: Any) -> Any:
    if isinstance(value, dict):
        kind = value.get("$")
        if kind == "bytes":
            return base64.b64decode(value["v"])
        if kind == "time":
            return datetime.fromtimestamp(value["v"], UTC)
        if kind == "decimal":
            return Decimal(value["v"])
        return {key: from_wire(each) for key, each in value.items()}
    if isinstance(value, list):
        return [from_wire(each) for each in value]
    return value


class Bridge:
    """The process, and the conversation with it; one that does not answer in time is ended."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._requests = 0
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="bridge", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, op: str, **arguments: Any) -> Any:
        self._requests += 1
        assert self._process.stdin is not None
        request = {"id": self._requests, "op": op, **{key: to_wire(value) for key, value in arguments.items()}}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=3 * PATIENCE)
        except BaseException:
            # The answer, if it comes, would be taken for that of another question.
            self._process.kill()
            raise
        if not line:
            raise RuntimeError(f"the bridge ended with {self._process.wait()} while asked to {op}")
        answer = json.loads(line)
        assert answer["id"] == self._requests, f"answer {line!r} does not belong to request {self._requests}"
        if "refused" in answer:
            told = answer["refused"]
            raise Refused(Scope(told["scope"]), told["code"], told["text"])
        if "failed" in answer:
            raise RuntimeError(f"{op}: {answer['failed']}")
        return from_wire(answer["ok"])

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(PATIENCE)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        self._process.stdout.close()


def delivery_from(told: Mapping[str, Any]) -> Delivery:
    return Delivery(
        body=told["body"],
        exchange=told["exchange"],
        routing_key=told["routing_key"],
        tag=told["tag"],
        redelivered=told["redelivered"],
        properties=told["properties"],
        consumer=told.get("consumer"),
        remaining=told.get("remaining"),
    )


class RemoteChannel(Channel):
    def __init__(self, bridge: Bridge, connection: int) -> None:
        self._bridge = bridge
        self._number = bridge.ask("open_channel", connection=connection)

    def _ask(self, op: str, **arguments: Any) -> Any:
        return self._bridge.ask(op, channel=self._number, **arguments)

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._ask(
            "declare_exchange",
            name=name,
            kind=kind,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments or {},
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._ask("delete_exchange", name=name, if_unused=if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("bind_exchange", name=destination, source=source, key=routing_key, arguments=arguments or {})

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("unbind_exchange", name=destination, source=source, key=routing_key, arguments=arguments or {})

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueState:
        told = self._ask(
            "declare_queue",
            name=name,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments or {},
        )
        return QueueState(told["name"], told["messages"], told["consumers"])

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("bind_queue", name=queue, source=exchange, key=routing_key, arguments=arguments or {})

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("unbind_queue", name=queue, source=exchange, key=routing_key, arguments=arguments or {})

    def purge_queue(self, name: str) -> int:
        return int(self._ask("purge_queue", name=name))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return int(self._ask("delete_queue", name=name, if_unused=if_unused, if_empty=if_empty))

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        self._ask(
            "publish", name=exchange, key=routing_key, body=body, properties=properties or {}, mandatory=mandatory
        )

    def select_confirms(self) -> None:
        self._ask("select_confirms")

    def confirm(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> Outcome:
        told = self._ask(
            "confirm", name=exchange, key=routing_key, body=body, properties=properties or {}, mandatory=mandatory
        )
        returned = told["returned"]
        return Outcome(told["confirmed"], None if returned is None else Returned(**returned))

    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        return int(self._ask("confirm_many", name=exchange, key=routing_key, bodies=bodies))

    def next_return(self, timeout: float = PATIENCE) -> Returned | None:
        told = self._ask("next_return", timeout_ms=int(timeout * 1000))
        return None if told is None else Returned(**told)

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        told = self._ask("get", name=queue, no_ack=no_ack)
        return None if told is None else delivery_from(told)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        return str(
            self._ask("consume", name=queue, tag=tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments or {})
        )

    def cancel(self, tag: str) -> None:
        self._ask("cancel", tag=tag)

    def next_delivery(self, timeout: float = PATIENCE) -> Delivery | None:
        told = self._ask("next_delivery", timeout_ms=int(timeout * 1000))
        return None if told is None else delivery_from(told)

    def next_cancellation(self, timeout: float = PATIENCE) -> str | None:
        told: str | None = self._ask("next_cancellation", timeout_ms=int(timeout * 1000))
        return told

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._ask("ack", tag=tag, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._ask("nack", tag=tag, multiple=multiple, requeue=requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._ask("reject", tag=tag, requeue=requeue)

    def recover(self) -> None:
        self._ask("recover")

    def qos(self, count: int, *, for_channel: bool = False) -> None:
        self._ask("qos", count=count, for_channel=for_channel)

    def select_transactions(self) -> None:
        self._ask("select_transactions")

    def commit(self) -> None:
        self._ask("commit")

    def rollback(self) -> None:
        self._ask("rollback")

    def close(self) -> None:
        self._ask("close_channel")

    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        try:
            self._ask("wait_closed", timeout_ms=int(timeout * 1000))
        except Refused as refused:
            return refused
        raise AssertionError("the channel was not closed")


class RemoteClient(Client):
    """A connection in the bridge's process, which is started with the first."""

    _bridge: ClassVar[Bridge | None] = None

    @classmethod
    def command(cls) -> tuple[list[str], Path]:
        """What starts the bridge, and in which folder."""
        raise NotImplementedError

    @classmethod
    def bridge(cls) -> Bridge:
        if cls._bridge is not None and not cls._bridge.is_running:
            cls.stop_bridge()
        if cls._bridge is None:
            cls._bridge = Bridge(*cls.command())
        return cls._bridge

    @classmethod
    def stop_bridge(cls) -> None:
        if cls._bridge is not None:
            cls._bridge.stop()
            cls._bridge = None

    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        self._own_bridge = self.bridge()
        self._connection = self._own_bridge.ask("connect", url=url, heartbeat=heartbeat, frame_max=frame_max or 0)

    def channel(self) -> Channel:
        return RemoteChannel(self._own_bridge, self._connection)

    def idle(self, seconds: float) -> None:
        self._own_bridge.ask("idle", timeout_ms=int(seconds * 1000))

    @property
    def is_open(self) -> bool:
        return bool(self._own_bridge.ask("is_open", connection=self._connection))

    def close(self) -> None:
        if self._own_bridge.is_running:
            self._own_bridge.ask("close_connection", connection=self._connection)


class NodeClient(RemoteClient):
    """Node's amqplib, installed by npm into tests/interop/node/node_modules."""

    name = "amqplib"
    lacks = frozenset({Feature.TRANSACTIONS, Feature.OPEN_REASON})
    header_samples = {
        "true": True,
        "false": False,
        "zero": 0,
        "negative": -5,
        "32 bit": 2**31 - 1,
        "64 bit": 2**40,
        "float": 1.5,
        "text": "grüße, 世界",
        "long text": "x" * 5000,
        "bytes": b"\x00\xff\xfe",
        "decimal": Decimal("3.14"),
        "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        "nothing": None,
        "list": [1, "two", [3.5, {"four": 4}], None],
        "table": {"inner": {"deeper": [True, False]}, "number": 7},
        "empty list": [],
        "empty table": {},
    }
    _missing: ClassVar[str | None] = None
    _is_installed: ClassVar[bool] = False

    @classmethod
    def unavailable(cls) -> str | None:
        if not cls._is_installed and cls._missing is None:
            cls._missing = cls._install()
            cls._is_installed = cls._missing is None
        return cls._missing

    @classmethod
    def _install(cls) -> str | None:
        folder = HERE / "node"
        if shutil.which("node") is None or shutil.which("npm") is None:
            return f"node and npm are not there: {HINT}"
        with open(folder / ".install.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that start together install once
            if (folder / "node_modules" / "amqplib").exists():
                return None
            done = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
        if done.returncode == 0:
            return None
        return f"npm could not install amqplib ({' '.join(done.stderr.split())[-200:]}): {HINT}"

    @classmethod
    def command(cls) -> tuple[list[str], Path]:
        return ["node", "bridge.js"], HERE / "node"


class JavaClient(RemoteClient):
    """RabbitMQ's Java client as Debian packages it; the bridge is compiled when first used."""

    name = "java"
    header_samples = {
        "true": True,
        "false": False,
        "zero": 0,
        "negative": -5,
        "32 bit": 2**31 - 1,
        "64 bit": 2**40,
        "float": 1.5,
        "text": "grüße, 世界",
        "long text": "x" * 5000,
        "bytes": b"\x00\xff\xfe",
        "decimal": Decimal("3.14"),
        "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        "nothing": None,
        "list": [1, "two", [3.5, {"four": 4}], None],
        "table": {"inner": {"deeper": [True, False]}, "number": 7},
        "empty list": [],
        "empty table": {},
    }

    @classmethod
    def recovering(cls, url: str) -> JavaClient:
        """A connection that recovers itself and its topology when it is lost, as is the library's default."""
        client = cls.__new__(cls)
        client._own_bridge = cls.bridge()
        client._connection = client._own_bridge.ask("connect", url=url, heartbeat=0, frame_max=0, recovers=True)
        return client

    jars = (Path("/usr/share/java/amqp-client.jar"), Path("/usr/share/java/slf4j-api.jar"))
    _classes: ClassVar[Path | None] = None

    @classmethod
    def unavailable(cls) -> str | None:
        for tool in ("java", "javac"):
            if shutil.which(tool) is None:
                return f"{tool} is not there: {HINT}"
        for jar in cls.jars:
            if not jar.exists():
                return f"{jar.name} is not there: {HINT}"
        return None

    @classmethod
    def command(cls) -> tuple[list[str], Path]:
        if cls._classes is None:
            cls._classes = Path(tempfile.mkdtemp(prefix="warren-interop-java-"))
            atexit.register(shutil.rmtree, cls._classes, ignore_errors=True)
            path = ":".join(map(str, cls.jars))
            subprocess.run(
                ["javac", "-nowarn", "-cp", path, "-d", str(cls._classes), str(HERE / "java" / "Bridge.java")],
                check=True,
                timeout=100,
            )
        path = ":".join(map(str, (*cls.jars, cls._classes)))
        return ["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", path, "Bridge"], cls._classes


def stop_bridges() -> None:
    NodeClient.stop_bridge()
    JavaClient.stop_bridge()
