"""A broker as a process of its own, which a test may kill at any moment and start again on the same folder."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.wire import Address, WireConnection

READY = re.compile(r"WarrenMQ \S+ ready: amqp://127\.0\.0\.1:(\d+) ")
START_LIMIT = 60.0


def _limited(open_files: tuple[int, int] | None) -> list[str]:
    """A command that runs the rest of the line with these limits of open files."""
    if open_files is None:
        return []
    soft, hard = open_files
    return ["/bin/sh", "-c", f'ulimit -S -n {soft} && ulimit -H -n {hard} && exec "$@"', "sh"]


class BrokerProcess:
    """`warren serve` on a data folder. No WARREN_ setting of the tester's reaches it but those in `environ`.

    What it says on standard error goes to a file beside the folder, so that no pipe fills up. `open_files` are its soft
    and hard limit of descriptors.
    """

    def __init__(
        self,
        folder: Path,
        environ: dict[str, str] | None = None,
        log_file: Path | None = None,
        http_port: str = "off",
        open_files: tuple[int, int] | None = None,
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARREN_")}
        self.log_file = log_file or folder.with_suffix(".log")
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *_limited(open_files),
                    sys.executable,
                    "-m",
                    "warrenmq",
                    "serve",
                    "--port",
                    "0",
                    "--http-port",
                    http_port,
                    "--data-dir",
                    str(folder),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                env=inherited | (environ or {}),
            )
        self.address = Address("127.0.0.1", 0)

    def ready(self) -> Self:
        """Wait until clients can connect."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select() has a limit of 1,024 descriptors
            selector.register(self.process.stdout, selectors.EVENT_READ)
            readable = selector.select(START_LIMIT)
        line = self.process.stdout.readline().decode() if readable else "(nothing came)"
        found = READY.match(line)
        assert found, f"no broker: {line!r}\n{self.log()}"
        self.address = Address("127.0.0.1", int(found[1]))
        return self

    def connect(self) -> WireConnection:
        return WireConnection(self.address).open()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        self.process.communicate(timeout=START_LIMIT)
        return self.process.returncode

    @property
    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_dead:
            self.process.kill()
        self.process.communicate()
