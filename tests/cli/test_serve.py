"""`warren serve` as a process: its one line, its signals, its refusals."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pika
import pytest

import warrenmq
from tests.support.wire import Address, EndOfStream, WireConnection

READY = re.compile(r"WarrenMQ (\S+) ready: amqp://127\.0\.0\.1:(\d+) data=(.+) compiled=(yes|no)\n")
START_LIMIT = 60.0


class Served:
    """A `warren serve` process of a test."""

    def __init__(self, *arguments: str, environ: dict[str, str] | None = None) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARREN_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "warrenmq", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=inherited | (environ or {}),
        )

    def ready(self) -> re.Match[str]:
        """Wait for the line that says that clients can connect."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_LIMIT)
        line = self.process.stdout.readline() if readable else "(nothing came)"
        found = READY.fullmatch(line)
        assert found, f"{line!r}, then {self.end(signal.SIGKILL)}"
        return found

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Send the signal, if any; exit code, further output and log."""
        if number is not None:
            self.process.send_signal(number)
        out, log = self.process.communicate(timeout=START_LIMIT)
        return self.process.returncode, out, log


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    started: list[Served] = []

    def start(*arguments: str, environ: dict[str, str] | None = None) -> Served:
        started.append(Served(*arguments, environ=environ))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
        served.process.communicate()


def test_ready_line_has_version_address_folder_and_compiled(serve: Serve, tmp_path: Path) -> None:
    found = serve("--port", "0", "--http-port", "off", "--data-dir", str(tmp_path / "data")).ready()
    version, port, folder, compiled = found.groups()
    assert version == warrenmq.__version__
    assert folder == str(tmp_path / "data")
    assert compiled == ("yes" if warrenmq.COMPILED else "no")
    with pika.BlockingConnection(pika.ConnectionParameters(port=int(port))) as connection:
        assert connection.channel().is_open


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_closes_connections_with_320_and_exits_0(serve: Serve, number: signal.Signals) -> None:
    served = serve("--port", "0", "--http-port", "off", "--data-dir", "none")
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=int(served.ready()[2])))
    code, out, log = served.end(number)
    assert (code, out) == (0, ""), log
    assert "Traceback" not in log
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=10)
    assert closed.value.reply_code == 320


def test_http_answers_on_its_port(serve: Serve, tmp_path: Path) -> None:
    served = serve("--port", "0", "--http-port", "0", "--data-dir", "none")
    served.ready()
    assert served.process.stderr is not None
    for line in served.process.stderr:
        if found := re.search(r"HTTP on (http://\S+:\d+)", line):
            break
    assert httpx.get(found[1] + "/healthz", timeout=30).json() == {"status": "ready"}
    assert "warren_connections 0\n" in httpx.get(found[1] + "/metrics", timeout=30).text
    assert served.end(signal.SIGTERM)[0] == 0


def test_settings_come_from_file_and_environment_too(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "warren.toml"
    file.write_text(f'port = 0\nhttp_port = false\ndata_dir = "{tmp_path / "from-file"}"\n')
    found = serve("--config", str(file), environ={"WARREN_DATA_DIR": str(tmp_path / "from-environment")}).ready()
    assert found[3] == str(tmp_path / "from-environment")


def test_log_goes_to_standard_error_with_time_level_and_name(serve: Serve) -> None:
    served = serve("--port", "0", "--http-port", "off", "--data-dir", "none")
    served.ready()
    _, out, log = served.end(signal.SIGTERM)
    assert out == ""
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    warrenmq\.serve: stopping$", log, re.MULTILINE)


def assert_refused(served: Served, *parts: str) -> None:
    code, out, log = served.end()
    assert (code, out) == (1, "")
    lines = [line for line in log.splitlines() if "compiled modules are missing" not in line]
    assert len(lines) == 1, log
    assert lines[0].startswith("warren: ")
    for part in parts:
        assert part in lines[0]


def test_restart_recovers_confirmed_messages_and_logs_it(serve: Serve, tmp_path: Path) -> None:
    arguments = ("--port", "0", "--http-port", "off", "--data-dir", str(tmp_path), "--durability", "os")
    served = serve(*arguments)
    with pika.BlockingConnection(pika.ConnectionParameters(port=int(served.ready()[2]))) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    served.end(signal.SIGKILL)
    again = serve(*arguments)
    with pika.BlockingConnection(pika.ConnectionParameters(port=int(again.ready()[2]))) as connection:
        assert connection.channel().basic_get("q")[2] == b"kept"
    _, _, log = again.end(signal.SIGTERM)
    assert re.search(
        rf"INFO    warrenmq\.node: recovered {tmp_path} in \d+\.\d\d s, replayed \d+ epochs of the log$", log, re.M
    )


def test_unknown_durability_is_one_line_and_exit_1(serve: Serve) -> None:
    assert_refused(serve("--durability", "sometimes"), "--durability = 'sometimes'", '"fsync"', '"interval=MS"', '"os"')


def test_port_in_use_is_one_line_and_exit_1(serve: Serve) -> None:
    port = serve("--port", "0", "--http-port", "off", "--data-dir", "none").ready()[2]
    assert_refused(serve("--port", port, "--http-port", "off", "--data-dir", "none"), port, "in use")


def test_http_port_in_use_is_one_line_and_exit_1(serve: Serve) -> None:
    port = serve("--port", "0", "--http-port", "off", "--data-dir", "none").ready()[2]
    assert_refused(serve("--port", "0", "--http-port", port, "--data-dir", "none"), port, "in use")


def test_locked_data_folder_is_one_line_and_exit_1(serve: Serve, tmp_path: Path) -> None:
    serve("--port", "0", "--http-port", "off", "--data-dir", str(tmp_path)).ready()
    assert_refused(serve("--port", "0", "--http-port", "off", "--data-dir", str(tmp_path)), str(tmp_path))


def test_data_folder_that_cannot_be_made_is_one_line_and_exit_1(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "data")
    assert_refused(serve("--port", "0", "--http-port", "off", "--data-dir", folder), folder)


def test_host_that_does_not_exist_is_one_line_and_exit_1(serve: Serve) -> None:
    assert_refused(serve("--host", "999.1.1.1", "--port", "0", "--http-port", "off", "--data-dir", "none"), "999.1.1.1")


def test_bad_configuration_is_one_line_and_exit_1(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "warren.toml"
    file.write_text("prot = 1\n")
    assert_refused(serve("--config", str(file)), "unknown key 'prot'; did you mean port?")
    assert_refused(serve("--port", "many"), "--port = 'many'")
    assert_refused(serve("--config", str(tmp_path / "none.toml")), "No such file")
    assert_refused(serve(environ={"WARREN_HOTS": "x"}), "did you mean WARREN_HOST?")


def test_version_is_printed() -> None:
    result = subprocess.run([sys.executable, "-m", "warrenmq", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"WarrenMQ {warrenmq.__version__}\n"


def test_installed_command_is_the_module() -> None:
    command = Path(sys.executable).with_name("warren")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"WarrenMQ {warrenmq.__version__}\n"


HOSTILE = "x\n2026-01-01 00:00:00,000 INFO forged: line\x1b[2J\u202e"


def attack_log(port: int) -> None:
    """Send hostile names wherever a client can put one."""
    here = Address("127.0.0.1", port)
    with WireConnection(replace(here, user=HOSTILE)) as refused, pytest.raises(EndOfStream):
        refused.open()
    with WireConnection(here) as refused:
        refused.start()
        refused.log_in(mechanism=HOSTILE, response=b"")
        refused.expect_end()
    with WireConnection(here) as connection:
        connection.open()
        for number, method, arguments in (
            (1, "queue.declare", {"queue": HOSTILE, "passive": True}),
            (2, "exchange.declare", {"exchange": HOSTILE, "type": "direct", "passive": True}),
            (3, "exchange.bind", {"source": HOSTILE, "destination": "amq.topic", "routing_key": HOSTILE}),
        ):
            connection.channel(number).refused(method, **arguments)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_name_of_a_client_can_forge_a_line_of_the_log(serve: Serve, log_format: str) -> None:
    served = serve("--port", "0", "--http-port", "off", "--data-dir", "none", "--log-format", log_format)
    attack_log(int(served.ready()[2]))
    _, _, log = served.end(signal.SIGTERM)
    lines = log.removesuffix("\n").split("\n")
    assert log.count("forged") >= 5
    assert all(line.isprintable() for line in lines)
    if log_format == "text":
        assert all(re.match(r"\d{4}-\d\d-\d\d \S+ [A-Z]+ +warrenmq\.\w+: ", line) for line in lines)
    else:
        assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in lines)
