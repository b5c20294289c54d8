"""Feeds the protocol and the whole server random bytes, guided by coverage, until something breaks or time is up.

    make fuzz ARGS="-max_total_time=600"          guided: the modules run uncompiled, where atheris sees the branches
    make fuzz ARGS="--compiled -runs=1000000"     unguided: the compiled modules, as they are shipped

All other arguments are libFuzzer's (a folder name is a corpus that grows). Outside the suite: tests/properties asks the
same of fewer inputs in a few seconds.
"""

import logging
import struct
import sys
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def forget_compiled_modules() -> None:
    """Let every import find the .py, even where a compiled module lies beside it."""
    sys.path_hooks.insert(0, FileFinder.path_hook((SourceFileLoader, [".py"])))
    for place in list(sys.path_importer_cache):
        if place.startswith(str(ROOT)):
            del sys.path_importer_cache[place]


def write_seeds(folder: Path) -> None:
    """Whole conversations, so that the fuzzer need not invent the protocol."""
    from tests.fuzz.targets import TARGETS
    from tests.support.conversations import CONVERSATIONS, apply_edits

    folder.mkdir(parents=True, exist_ok=True)
    for number, conversation in enumerate(CONVERSATIONS):
        _, *pieces = apply_edits(conversation, [])
        for target in range(len(TARGETS)):
            (folder / f"conversation-{number}-{target}").write_bytes(bytes((target,)) + b"".join(pieces))
        for place, frame in enumerate(conversation):
            (folder / f"payload-{number}-{place}").write_bytes(b"\x01" + frame.payload)
            edit = struct.pack(">BBHI", number, place, place, place << 8)
            (folder / f"edit-{number}-{place}").write_bytes(b"\x03" + edit)


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit(
            "fuzz_protocol: atheris is not installed here (pip install atheris; it needs Linux and clang's libFuzzer)"
        )
    arguments = [argument for argument in sys.argv if argument != "--compiled"]
    sys.path[:0] = [str(ROOT)]
    logging.getLogger("warrenmq").setLevel(logging.ERROR)
    logging.getLogger("warrenmq").propagate = False
    if arguments == sys.argv:
        forget_compiled_modules()
        with atheris.instrument_imports(include=["warrenmq"]):
            from tests.fuzz import targets
    else:
        from tests.fuzz import targets
    if all(argument.startswith("-") for argument in arguments[1:]):
        corpus = ROOT / "build" / "fuzz"
        write_seeds(corpus)
        arguments.append(str(corpus))
    atheris.Setup(arguments, targets.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
