"""Builds the compiled modules: the plain .py files named in HOT_MODULES, each with a .pxd beside it, through Cython.

All of them are compiled or none is: they share C-level declarations, so half of them would not import.
WARREN_PURE=1 compiles nothing. Where compiling fails, the package is installed uncompiled (slower, same behaviour)
with a warning; WARREN_REQUIRE_COMPILED=1 makes that failure fatal.

Generated C and object files stay in build/, so a second build compiles only what changed. Both steps use all cores,
under pip too.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Compile time is a newcomer's first minute, so a module is listed only if a profile or a measurement asks for it.
#
# The comment is its share of the broker's CPU time when uncompiled, in the workload where that is largest
# (benchmarks/module_profile.py). -O3 takes twice as long to compile as -O1. Everything at -O1 costs 12 % (16 B, each
# acked) to 25 % (fan-out to 10) of the throughput, and -O2 about 5 %: so -O3 is for the path of every message.
FAST = "-O3"
SMALL = "-O1"
HOT_MODULES = {
    # Wire format.
    "protocol.output": FAST,  # 51 %, fan-out
    "protocol.frames": FAST,  # 41 %, one write per message
    "protocol.properties": SMALL,  # 5.4 %, durable
    "protocol.values": SMALL,  # headers of messages; called from protocol.properties
    # Broker.
    "core.classic_queue": FAST,  # 18 %, each acked
    "core.dropping_queue": SMALL,  # a base of the above
    "core.queue": SMALL,  # the base of the above
    "core.channel": FAST,  # 12 %, confirms
    "core.channel_confirms": FAST,  # the base of the above
    "core.consumer": FAST,  # 11 %, fan-out
    "core.message": FAST,  # 10 %, paging
    "core.backlog": FAST,  # 5.7 %, each acked
    "core.window": FAST,  # the base of the above
    "core.filtered": SMALL,  # in a queue with a filter; uncompiled, a message costs 5 times as much as without
    "core.consumer_filter": SMALL,  # called from the above
    "core.dead_letter": SMALL,  # uncompiled, a dead-lettered message costs the broker 1.7 times as much
    "core.delayed": SMALL,  # called for each delayed message from core.expiry
    "core.expiry": SMALL,  # the same of a message in a queue with a TTL: 1.7 times
    "core.length_limit": SMALL,  # in a queue with a length limit: 1.4 times; one that drops its head: 2.3 times
    "core.priority": SMALL,  # the same, with priorities
    "core.ledger": FAST,  # 3.9 %, confirms
    "core.exchange": FAST,  # its routes are read for each publish, from C
    "core.stream": SMALL,  # 11 %, streams
    "core.number_header": SMALL,  # 5.4 %, streams
    "core.stream_filter": SMALL,  # a message that a filter skips: 1.6 times
    "core.publish_rules": SMALL,  # a publish with other properties than the last: 2.4 times
    "core.routing.topic": SMALL,  # a publish whose route is not cached: 0.4 us, 1.0 us uncompiled
    "core.routing.consistent_hash": SMALL,  # the same; 0.9 us for 10 queues, 4.3 us uncompiled
    "core.ports": SMALL,  # base classes: the broker's calls to the outside go through their C-level tables
    "core.stats": SMALL,  # counters, incremented from C
    "core.turn": SMALL,  # lists, appended to from C
    # AMQP server.
    "server.message_path": FAST,  # 9.2 %, topic
    "server.outbox": FAST,  # 7.6 %, confirms
    "server.moderation": SMALL,  # called at the end of each turn
    "server.ticker": SMALL,  # 0.8 %, confirms
    "server.flow": SMALL,  # read by server.message_path for each publish
    # Storage.
    "storage.codec": FAST,  # 24 %, paging
    "storage.queue_store": FAST,  # 8.8 %, paging
    "storage.store_context": SMALL,  # attributes that storage.queue_store reads
    "storage.commit_log": FAST,  # 1.7 %, durable
    "storage.stream_store": SMALL,  # 5.1 %, streams
    "storage.stream_blocks": SMALL,  # decodes what streams read from disk
    "storage.segments": SMALL,  # 3.9 %, paging
    "storage.replay": SMALL,  # decodes the log at a restart
    "storage.native_writer": SMALL,  # writes without holding the interpreter lock
    "journal.direct_writer": SMALL,  # writes without holding the interpreter lock
    # Tracing. The modules that encode and index batches run without the interpreter lock, beside the event loop.
    "events.rows": FAST,  # 12 %, tracing
    "events.row_reader": FAST,  # 22 %, tracing
    "events.columns": FAST,  # 13 %, tracing
    "events.context_cache": FAST,  # 9.0 %, tracing
    "tracing.recorder": FAST,  # 7.6 %, tracing
    "events.batch": SMALL,  # 1.5 %, tracing; searches read every row with it
    "events.ids": SMALL,  # 1.1 %, tracing
    "events.message_ids": SMALL,  # called from tracing.trace_ids for each message
    "tracing.keys": SMALL,  # sorts the keys of the index
    "tracing.trace_ids": SMALL,  # 0.6 %, tracing
    # Client: benchmarks/client_compare.py measures it beside other clients.
    "protocol.connection": SMALL,
    "client.confirms": SMALL,
    "client.delivery": SMALL,
    "client.engine.channel_state": SMALL,
}
# Functions that Cython would otherwise repeat in every module.
SHARED_MODULE = "warrenmq._cython_shared"

# Only directives that keep the semantics of the plain .py; a module may relax more for itself in its first lines.
DIRECTIVES = {
    "language_level": 3,
    "embedsignature": False,
    "annotation_typing": False,
    "nonecheck": True,
    "emit_code_comments": False,
    "warn.unreachable": False,  # branches for the other form (compiled, plain) of a module
    "auto_pickle": False,  # modules whose classes users pickle or copy turn it on
}

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "src"
GENERATED = Path("build/cython")
PURE = os.environ.get("WARREN_PURE", "") == "1"
REQUIRED = os.environ.get("WARREN_REQUIRE_COMPILED", "") == "1"
CORES = os.cpu_count() or 1


def extensions() -> list[Extension]:
    """The hot modules, not yet cythonized."""
    if PURE:
        return []
    modules = [_extension(f"warrenmq.{name}", ".py", level) for name, level in HOT_MODULES.items()]
    return [*modules, _extension(SHARED_MODULE, ".c", SMALL)]


def _extension(name: str, suffix: str, level: str) -> Extension:
    # Debug information makes objects eight times as large and compiling a third slower; warnings about generated code
    # help no one.
    flags = [] if sys.platform == "win32" else ["-g0", "-w", level]
    source = "src/" + name.replace(".", "/") + suffix
    return Extension(name, [source], extra_compile_args=flags, depends=["setup.py"])  # which has the flags


class BuildHotModules(build_ext):
    """Cythonizes late (metadata commands stay quick) and falls back to plain Python as a whole."""

    def finalize_options(self) -> None:
        if any(source.endswith(".py") for ext in self.distribution.ext_modules or [] for source in ext.sources):
            self.distribution.ext_modules = self.cythonized(self.distribution.ext_modules)
        super().finalize_options()
        if self.parallel is None:
            self.parallel = CORES

    def run(self) -> None:
        in_place = self.inplace  # setuptools clears it while it builds
        if in_place and not PURE:
            self.remove_stale()
        self._progress = Progress("compile", len(self.extensions))
        # The longest first, so that no core is idle at the end.
        self.extensions.sort(key=lambda ext: -sum(os.path.getsize(source) for source in ext.sources))
        try:
            super().run()
        except Exception as failure:  # distutils and the compilers raise many unrelated classes
            if REQUIRED:
                raise
            self.inplace = in_place
            self.fall_back(failure)

    def build_extension(self, ext: Extension) -> None:
        super().build_extension(ext)
        self._progress.advance(ext.name)

    def cythonized(self, modules: list[Extension]) -> list[Extension]:
        try:
            return cythonized(modules)
        except Exception as failure:  # no Cython, or a Cython that cannot read this source
            if REQUIRED:
                raise
            warn_uncompiled(failure)
            return []

    def fall_back(self, failure: BaseException) -> None:
        for ext in self.extensions:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # an older build would not match the source
        self.extensions = []
        self.distribution.ext_modules = []
        warn_uncompiled(failure)

    def remove_stale(self) -> None:
        """Delete built files of modules that are no longer hot: Python would prefer them to their .py."""
        wanted = {Path(self.get_ext_fullpath(ext.name)).resolve() for ext in self.extensions}
        for suffix in EXTENSION_SUFFIXES:
            for built in SOURCE.rglob("*" + suffix):
                if built.resolve() not in wanted:
                    built.unlink()


class Progress:
    """Counts finished modules on standard error: in a terminal on one line that is overwritten, else now and then."""

    def __init__(self, step: str, total: int) -> None:
        self._step = step
        self._total = total
        self._done = 0
        self._lock = threading.Lock()  # modules are compiled by several threads

    def advance(self, module: str) -> None:
        with self._lock:
            self._done += 1
            is_last = self._done == self._total
            name = "" if is_last else module.removeprefix("warrenmq.")
            text = f"        {self._step} {self._done:2}/{self._total} {name}"
            if sys.stderr.isatty():
                print(f"{text:<50}", end="\n" if is_last else "\r", file=sys.stderr, flush=True)
            elif is_last or self._done % (self._total // 4 or 1) == 0:
                print(text, file=sys.stderr, flush=True)


def cythonized(modules: list[Extension]) -> list[Extension]:
    """Generate C where the .py or a .pxd that it uses is newer."""
    import Cython
    from Cython.Build import cythonize

    options: dict[str, Any] = {
        "compiler_directives": DIRECTIVES,
        "shared_utility_qualified_name": SHARED_MODULE,
        "shared_utility_features_disabled": ["MemoryView"],  # no module uses typed memory views
    }
    stamp = GENERATED / "options"
    wanted = f"{Cython.__version__} {options}"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(GENERATED, ignore_errors=True)
    GENERATED.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)
    return list(cythonize(modules, build_dir=str(GENERATED), quiet=True, nthreads=CORES, **options))


def warn_uncompiled(failure: BaseException) -> None:
    print(
        f"warrenmq: WARNING: the hot modules could not be compiled ({type(failure).__name__}: {failure}); "
        "installing them as plain Python: the same behaviour, slower",
        file=sys.stderr,
    )


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildHotModules})
