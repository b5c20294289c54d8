"""Brokers to measure: each started on a free port with a fresh data folder, and ended with all that it started.

Every broker runs with its defaults. A started broker is known by an `Endpoint`. Its `with` block owns the processes
behind it, and leaving the block ends exactly those.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "src"
READY_LINE = re.compile(
    r"WarrenMQ (?P<version>\S+) ready: amqp://[^/\s]*:(?P<port>\d+)\S* .*compiled=(?P<compiled>yes|no)"
)
HTTP_LINE = re.compile(r"HTTP on http://[^/\s]*:(?P<port>\d+)")
# Debian's /usr/sbin wrapper changes the user; the script behind it runs as its caller.
RABBITMQ_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)
START_LIMIT = 90.0
STOP_LIMIT = 30.0


class BrokerError(Exception):
    """A broker did not start, or is not what it should be; the text is one line for the reader."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a running broker listens, and the processes whose CPU and memory are its own."""

    name: str
    port: int
    pids: tuple[int, ...]
    version: str
    compiled: bool | None = None
    http_port: int = 0  # of WarrenMQ


def raise_file_limit() -> int:
    """Allow this process, and the brokers it starts, as many open files as the machine permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Warren:
    """WarrenMQ from this checkout on a folder that outlives the process: stopped, killed and started again at will.

    With `pure`, the same sources where no compiled module lies beside them; without `keeps_data`, no data folder.
    """

    def __init__(
        self, folder: Path, *, pure: bool = False, keeps_data: bool = True, options: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.start_seconds = 0.0
        self._name = "uncompiled" if pure else "warrenmq" if keeps_data else "memory"
        self._pure = pure
        self._sources = copy_uncompiled(folder / "src") if pure else SOURCES
        self._options = ("--data-dir", str(self.data) if keeps_data else "none", *options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Endpoint:
        """Start and wait until clients can connect; `start_seconds` is how long that took, the interpreter included."""
        environment = os.environ | {"PYTHONPATH": str(self._sources), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "warrenmq", "serve", "--host", "127.0.0.1", "--port", "0", "--http-port", "0"]
        began = time.monotonic()
        self._process = _start([*command, *self._options], self.log, environment)
        ready = _await_line(READY_LINE, self._process, self.log)
        self.start_seconds = time.monotonic() - began
        compiled = ready["compiled"] == "yes"
        if self._pure and compiled:
            raise BrokerError("the uncompiled WarrenMQ says that it is compiled")
        http = _await_line(HTTP_LINE, self._process, self.log)
        pids = (self._process.pid,)
        return Endpoint(self._name, int(ready["port"]), pids, ready["version"], compiled, int(http["port"]))

    def stop(self, limit: float = STOP_LIMIT) -> float:
        """End it in order, if it runs; the seconds that took. After `limit` seconds it is killed."""
        began = time.monotonic()
        if self._process is not None:
            _stop(self._process, limit)
        self._process = None
        return time.monotonic() - began

    def kill(self) -> None:
        """End it as a power cut would, as far as the process goes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        return _last_words(self.log)


@contextmanager
def running_warren(*, pure: bool = False, keeps_data: bool = True) -> Iterator[Endpoint]:
    with scratch_folder() as folder:
        broker = Warren(folder, pure=pure, keeps_data=keeps_data)
        try:
            yield broker.start()
        finally:
            broker.stop()


def copy_uncompiled(folder: Path) -> Path:
    """Copy the package without what was built from it: on PYTHONPATH it comes before the installed one."""
    shutil.copytree(
        SOURCES, folder, ignore=shutil.ignore_patterns("*.so", "*.pyd", "*.c", "build", "__pycache__", "*.egg-info")
    )
    return folder


def find_rabbitmq() -> str | None:
    """The script that starts RabbitMQ, or None where it is not installed."""
    for script in RABBITMQ_SCRIPTS:
        if os.access(script, os.X_OK):
            return script
    return shutil.which("rabbitmq-server")


@contextmanager
def running_rabbitmq(plugins: tuple[str, ...] = ()) -> Iterator[Endpoint]:
    """The machine's RabbitMQ as a private node with its default settings and these plugins."""
    script = find_rabbitmq()
    if script is None:
        raise BrokerError("RabbitMQ is not installed")
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        port, distribution_port, name_port = _free_port(), _free_port(), _free_port()
        environment = os.environ | {"ERL_EPMD_PORT": str(name_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        environment |= _rabbitmq_settings(folder, port, distribution_port)
        (folder / "plugins").write_text(f"[{','.join(plugins)}].\n")
        epmd = shutil.which("epmd")
        if epmd is not None:
            # A name server of its own, else the node leaves a shared one running behind it.
            stack.enter_context(_running([epmd], folder / "epmd.log", environment))
        log = folder / "console.log"
        process = stack.enter_context(_running([script], log, environment))
        version = _await_greeting(port, process, log)
        beam = int((folder / "pid").read_text())
        stack.callback(_end_pid, beam)
        yield Endpoint("rabbitmq", port, (beam,), version)


def attached(definition: str) -> Endpoint:
    """A broker that already runs, given as NAME=PORT[,PID...]."""
    match = re.fullmatch(r"(?P<name>[\w.-]+)=(?P<port>\d+)(?P<pids>(,\d+)*)", definition)
    if match is None:
        raise BrokerError(f"{definition}: a target is written NAME=PORT or NAME=PORT,PID")
    port = int(match["port"])
    try:
        version = greeted_version(port)
    except OSError as error:
        raise BrokerError(f"{definition}: no AMQP broker answers on port {port} ({error})") from error
    return Endpoint(match["name"], port, tuple(int(pid) for pid in match["pids"].split(",") if pid), version)


def cpu_seconds_of(endpoint: Endpoint) -> float:
    """The CPU time of the broker's threads that are alive, to the microsecond; 0 where its processes are not known."""
    nanoseconds = 0
    for pid in endpoint.pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                nanoseconds += int(task.read_text().split()[0])
            except OSError:  # the thread has ended
                continue
    return nanoseconds / 1e9


def greeted_version(port: int) -> str:
    """The version that a broker tells in connection.start; raises OSError where none greets."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.sendall(b"AMQP\x00\x00\x09\x01")
        greeting = b""
        while len(greeting) < 7 or len(greeting) < 8 + int.from_bytes(greeting[3:7], "big"):
            received = peer.recv(65536)
            if not received:
                raise ConnectionError("it closed the connection instead of greeting")
            greeting += received
    _, found, value = greeting.partition(b"\x07versionS")
    return value[4 : 4 + int.from_bytes(value[:4], "big")].decode() if found else "unknown"


def _rabbitmq_settings(folder: Path, port: int, distribution_port: int) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none-env"),
    }


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder on the disk that is measured; TMPDIR says where."""
    folder = Path(tempfile.mkdtemp(prefix="warren-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = _start(command, log, environment)
    try:
        yield process
    finally:
        _stop(process)


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A child process in its own session, so that Ctrl-C reaches only us and we end it in order."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[bytes], limit: float = STOP_LIMIT) -> None:
    process.terminate()
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_pid(pid: int) -> None:
    """End a process that our child started, and wait until it is gone."""
    deadline = time.monotonic() + STOP_LIMIT
    try:
        os.kill(pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_line(line: re.Pattern[str], process: subprocess.Popen[bytes], log: Path) -> re.Match[str]:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if match := line.search(log.read_text(errors="replace")):
            return match
        if ended:
            break
        time.sleep(0.01)
    raise BrokerError(f"WarrenMQ did not start: {_last_words(log)}")


def _await_greeting(port: int, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return greeted_version(port)
        except OSError:
            time.sleep(0.2)
    raise BrokerError(f"RabbitMQ did not start: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
