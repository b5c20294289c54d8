"""`warren serve`: the broker in the foreground, from reading its settings to a clean stop.

Standard output has one line, printed when clients can connect. The log goes to standard error, as does the progress of
a long recovery if it is a terminal. If the broker cannot start, or its storage fails, it prints one line there and
exits with 1.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import warrenmq
from warrenmq import config
from warrenmq.cli.log_format import formatter
from warrenmq.cli.printable import printable
from warrenmq.cli.progress import progress_bar
from warrenmq.embedded import event_loop_factory
from warrenmq.node import Node, NodeOptions, StartError, StorageFailed
from warrenmq.server.limits import raise_open_file_limit
from warrenmq.storage import crash_points
from warrenmq.storage.options import StorageOptions

# Seconds for flushing queues. What is not flushed by then is in the log, and the next start replays it.
STOP_DEADLINE = 60.0

# malloc.h
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3

log = logging.getLogger("warrenmq.serve")


def serve(flags: Mapping[str, object], config_file: Path | None) -> int:
    """Run until a signal; return the exit code."""
    try:
        settings = config.load(flags, os.environ, config_file)
        start_logging(settings.log_level, settings.log_format)
        raise_open_file_limit()
        crash_points.arm_from(os.environ.get("WARREN_TEST_CRASH_AT", ""))
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(_run_until_signalled(node_options(settings)))
    except (config.ConfigError, StartError) as failure:
        print(f"warren: {printable(str(failure))}", file=sys.stderr)
        return 1
    except StorageFailed as failure:
        print(
            f"warren: {printable(str(failure))}. Confirmed messages are in the data folder: check the disk (dmesg), "
            "check the folder with `warren check`, then start the broker again",
            file=sys.stderr,
        )
        return 1
    return 0


def node_options(settings: config.Settings) -> NodeOptions:
    return NodeOptions(
        host=settings.host,
        port=settings.port,
        http_port=settings.http_port,
        max_http_connections=settings.max_http_connections,
        data_dir=settings.data_dir,
        strict=settings.strict,
        server=config.server_options(settings),
        limits=config.limits(settings),
        http=config.http_options(settings),
        tracing=config.tracing_options(settings),
        policies=settings.policies,
        operator_policies=settings.operator_policies,
        storage=_limited_for_test(config.storage_options(settings), os.environ.get("WARREN_TEST_LIMITS", "")),
    )


def _limited_for_test(options: StorageOptions, limits: str) -> StorageOptions:
    """Apply limits of a test (`name=number,...`), so that little traffic reaches them."""
    known = {entry.name for entry in fields(StorageOptions)}
    changes: dict[str, Any] = {}
    for name, _, value in (limit.partition("=") for limit in limits.split(",") if limit):
        if name in known:
            changes[name] = int(value)
        else:
            log.warning("WARREN_TEST_LIMITS: the storage has no option %r", name)
    return replace(options, **changes)


def start_logging(level: str, log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def tune_garbage_collector() -> None:
    """Collect cyclic garbage rarely: messages create none, and each collection visits all waiting messages.

    Filling and draining a queue of 500,000 messages takes 1.4 times as long with Python's defaults.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def keep_freed_memory() -> None:
    """Make the C library reuse freed memory instead of returning it: each turn allocates the same buffers.

    16 B auto-ack: 0.57 -> 0.51 us of broker CPU per message, medians of 4 interleaved runs on a busy machine.
    glibc only.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 256 * 1024 * 1024)
        mallopt(M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        # Once these are set, arenas of other threads are trimmed to this at each free, regardless of the threshold.
        mallopt(M_TOP_PAD, 16 * 1024 * 1024)


def shorten_switch_interval() -> None:
    """Let a thread that waits for the interpreter lock have it after 1 ms instead of 5.

    The thread that writes segments takes the lock several times per page, so a busy loop starved it: while a million
    messages with an expiration were published, 60 MB of pages waited for it. Peak memory 190 -> 115 MB; messages per
    second of durable and of long queues 0.98 to 1.02, medians of 7 interleaved runs.
    """
    sys.setswitchinterval(0.001)


def ready_line(node: Node, options: NodeOptions) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    compiled = "yes" if warrenmq.COMPILED else "no"
    data = "none" if options.data_dir is None else printable(str(options.data_dir))
    return f"WarrenMQ {warrenmq.__version__} ready: amqp://{host}:{node.amqp_port} data={data} compiled={compiled}"


async def _run_until_signalled(options: NodeOptions) -> None:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # before the start, so that no early signal is lost
        loop.add_signal_handler(number, stop_requested.set)
    if not warrenmq.COMPILED:
        log.warning(
            "compiled modules are missing: running as plain Python, several times slower; reinstall with a C compiler"
        )
    node = Node(options)
    with progress_bar() as progress:
        await node.start(progress)
    tune_garbage_collector()
    keep_freed_memory()
    shorten_switch_interval()
    print(ready_line(node, options), flush=True)
    if node.http_port is not None:
        log.info("HTTP on http://%s:%d: pages, /api, /healthz, /metrics", node.host, node.http_port)
    node.failed.add_done_callback(lambda _: stop_requested.set())
    await stop_requested.wait()
    log.info("stopping")
    try:
        async with asyncio.timeout(STOP_DEADLINE):
            await node.stop()
    except TimeoutError:
        log.error("clean stop not finished within %g s, exiting; the next start replays the log", STOP_DEADLINE)
    node.require_storage()
