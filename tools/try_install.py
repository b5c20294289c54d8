"""Tries the WarrenMQ that is installed beside this Python: starts the broker, sends a message and gets it back.

    python tools/try_install.py compiled

The argument says what is expected: `compiled` or `uncompiled`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from warrenmq import client

READY = re.compile(r"ready: amqp://127\.0\.0\.1:(?P<port>\d+) .*compiled=(?P<compiled>yes|no)")


def main(expected: str) -> int:
    warren = Path(sysconfig.get_path("scripts")) / "warren"
    with tempfile.TemporaryDirectory(prefix="warren-try-") as folder:
        command = [
            str(warren),
            "serve",
            "--port",
            "0",
            "--http-port",
            "0",
            "--data-dir",
            "data",
            "--log-level",
            "error",
        ]
        broker = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            assert broker.stdout is not None
            ready = READY.search(broker.stdout.readline())
            if ready is None or ready["compiled"] != {"compiled": "yes", "uncompiled": "no"}[expected]:
                raise SystemExit(f"no ready line, or not {expected}")
            send_and_get(f"amqp://guest:guest@127.0.0.1:{ready['port']}/")
        finally:
            broker.terminate()
            broker.wait()
    return 0


def send_and_get(url: str) -> None:
    with client.connect(url) as connection:
        channel = connection.channel()
        channel.queue_declare("tried")
        channel.confirm_select()
        channel.publish("", "tried", "hello").result()
        message = channel.get("tried")
        if message is None or message.body != b"hello":
            raise SystemExit(f"expected the message back, got {message!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
