"""Brokers, Spark clusters and `warren analyze` as processes of their own, which tests may kill at any moment.

Each is the leader of a process group, so that what it started goes with it. What they say goes to files.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import waiting
from tests.support.history import History
from warrenmq import client
from warrenmq.events import schema
from warrenmq.pipeline.publish.results import STREAM_NAME
from warrenmq.pipeline.spark.java import find_java
from warrenmq.pipeline.spark.session import QUICK_START_OPTIONS

LIMIT = 420.0  # a loaded machine takes its time; nothing here waits for longer


wait_until = partial(waiting.wait_until, limit=LIMIT, interval=0.5)


def free_port() -> int:
    """A port that stays free while a broker starts again on it: below those that the system assigns to connections."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port of a hundred is free")


class Process:
    """A command that runs until it ends, is stopped or killed."""

    def __init__(self, command: Sequence[str], log_file: Path, environ: dict[str, str] | None = None) -> None:
        self.log_file = log_file
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARREN")}
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=inherited | (environ or {}),
                start_new_session=True,
            )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def wait_for_text(self, text: str) -> None:
        wait_until(lambda: text in self.log() or self.is_dead, f"{text!r} is said")
        assert text in self.log(), self.log()[-4000:]

    def kill(self) -> None:
        """As kill -9 does, with all that it started."""
        if not self.is_dead:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT)

    def interrupt(self) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)

    def end(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class BrokerAt(Process):
    """`warren serve` on a port and a folder that stay the same when it is started again. Tracing is off."""

    def __init__(self, folder: Path, port: int) -> None:
        flags = ["--port", str(port), "--http-port", "off", "--data-dir", str(folder)]
        log_file = folder.with_suffix(".log")
        said = log_file.read_text().count(" ready: ") if log_file.exists() else 0
        super().__init__([sys.executable, "-m", "warrenmq", "serve", *flags], log_file)
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/"
        wait_until(lambda: self.log().count(" ready: ") > said or self.is_dead, "the broker is ready")
        assert not self.is_dead, self.log()


class Analysis(Process):
    """`warren analyze` with the first compiler only, which starts sooner."""

    def __init__(self, url: str, log_file: Path, *flags: str) -> None:
        environ = {"JDK_JAVA_OPTIONS": QUICK_START_OPTIONS}
        command = [sys.executable, "-m", "warrenmq", "analyze", "--url", url, *flags]
        super().__init__(command, log_file, environ)


class Cluster:
    """A Spark master and two workers of one core each on loopback, from the installed package."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        self._spark_class = str(home / "bin" / "spark-class")
        self._folder = folder
        self._environ = {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START_OPTIONS} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
        }
        port = str(free_port())
        self.url = f"spark://127.0.0.1:{port}"
        flags = ["--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", *flags)
        self.workers: list[Process] = []
        try:
            self._master.wait_for_text("I have been elected leader")
            self.workers += [self._start_worker("worker-1"), self._start_worker("worker-2")]
            for worker in self.workers:
                worker.wait_for_text("Successfully registered with master")
        except BaseException:
            self.stop()
            raise

    def _start_worker(self, name: str) -> Process:
        flags = ["--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0"]
        work = ["--work-dir", str(self._folder / name)]
        return self._start(name, "org.apache.spark.deploy.worker.Worker", *flags, *work, self.url)

    def _start(self, name: str, *command: str) -> Process:
        return Process([self._spark_class, *command], self._folder / f"{name}.log", self._environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in (*self.workers, self._master):
            process.kill()


def publish_history(url: str, history: History, first: float, last: float, rows: int = 400) -> None:
    """A part of a history to the event log, from this share of it to that."""
    bodies = list(history.batches(rows))
    part = bodies[round(first * len(bodies)) : round(last * len(bodies))]
    with client.connect(url) as connection, connection.channel() as channel:
        channel.queue_declare(schema.STREAM_NAME, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_select()
        properties = client.Properties(content_type=schema.CONTENT_TYPE, delivery_mode=2)
        for body in part:
            channel.publish("", schema.STREAM_NAME, body, properties)
        channel.wait_for_confirms(LIMIT)


def read_documents(url: str) -> list[dict[str, Any]]:
    """All that is on the stream warren.analysis now; nothing where the broker or the stream is not there."""
    try:
        with client.connect(url, recovery=False) as connection:
            channel = connection.channel()
            count = channel.queue_declare(STREAM_NAME, passive=True).message_count
            channel.qos(prefetch_count=100)
            found: list[dict[str, Any]] = []
            if count == 0:
                return found
            for delivery in channel.consume(STREAM_NAME, arguments={"x-stream-offset": "first"}, timeout=10):
                found.append(json.loads(delivery.body))
                delivery.ack()
                if len(found) == count:
                    break
            return found
    except client.ClientError:
        return []


def answers_of(documents: Sequence[dict[str, Any]], job: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["job"] == job]
