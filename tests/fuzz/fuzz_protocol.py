"""Feeds the protocol and the whole server random bytes until something breaks or time is up.

    make fuzz ARGS="-max_total_time=600"    guided by coverage (atheris): the modules run uncompiled, to be seen
    make fuzz ARGS="--compiled 600"         mutations of the corpus, for 600 seconds, through the compiled modules

All other arguments are libFuzzer's (a folder name is a corpus that grows; build/fuzz if none is named). Outside the
suite: tests/properties asks the same of fewer inputs in a few seconds.
"""

import faulthandler
import logging
import random
import struct
import sys
import time
from importlib.machinery import FileFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "build" / "fuzz"


def forget_compiled_modules() -> None:
    """Let the package's imports find the .py, even where a compiled module lies beside it."""
    found = find_spec("warrenmq")
    assert found is not None
    assert found.origin is not None
    package = str(Path(found.origin).parent)
    make_finder = FileFinder.path_hook((SourceFileLoader, [".py"]))

    def find_sources_only(place: str) -> FileFinder:
        if not place.startswith(package):
            raise ImportError(f"{place} is for the usual finders")
        return make_finder(place)

    sys.path_hooks.insert(0, find_sources_only)


def write_seeds() -> None:
    """Whole conversations, so that the fuzzer need not invent the protocol."""
    from tests.fuzz.targets import TARGETS
    from tests.support.conversations import CONVERSATIONS, apply_edits

    CORPUS.mkdir(parents=True, exist_ok=True)
    for number, conversation in enumerate(CONVERSATIONS):
        _, *pieces = apply_edits(conversation, [])
        for target in range(len(TARGETS)):
            (CORPUS / f"conversation-{number}-{target}").write_bytes(bytes((target,)) + b"".join(pieces))
        for place, frame in enumerate(conversation):
            (CORPUS / f"payload-{number}-{place}").write_bytes(b"\x01" + frame.payload)
            edit = struct.pack(">BBHI", number, place, place, place << 8)
            (CORPUS / f"edit-{number}-{place}").write_bytes(b"\x03" + edit)


def fuzz_guided(arguments: list[str]) -> None:
    try:
        import atheris
    except ImportError:
        sys.exit(
            "fuzz_protocol: atheris is not installed (pip install atheris, where it supports this Python); "
            "without it there is only --compiled"
        )
    forget_compiled_modules()
    with atheris.instrument_imports(include=["warrenmq"]):
        from tests.fuzz import targets
    if all(argument.startswith("-") for argument in arguments[1:]):
        write_seeds()
        arguments.append(str(CORPUS))
    atheris.Setup(arguments, targets.run)
    atheris.Fuzz()


def fuzz_compiled(seconds: float) -> None:
    """Without guidance libFuzzer would forget the corpus at once: so mutate it here."""
    import warrenmq
    from tests.fuzz import targets

    if not warrenmq.COMPILED:
        sys.exit("fuzz_protocol: the modules are not compiled here (make install compiles them)")
    faulthandler.enable()
    write_seeds()
    corpus = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
    seed = random.randrange(2**32)
    print(f"seed {seed}, {len(corpus)} inputs to begin with", flush=True)
    chance = random.Random(seed)
    for data in corpus:
        targets.run(data)
    ends_at = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < ends_at:
        data = mutate(corpus, chance)
        try:
            targets.run(data)
        except BaseException:
            print(f"run {runs} of seed {seed} broke on {data.hex()}", file=sys.stderr)
            raise
        runs += 1
    print(f"{runs} runs, nothing broke")


def mutate(corpus: list[bytes], chance: random.Random) -> bytes:
    """One input, damaged a few times; the first byte, which chooses the target, mostly stays."""
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(min(1, len(data)), len(data))
        size = min(len(data) - start, chance.choice((1, 1, 2, 4, 8, 40)))
        match chance.randrange(5):
            case 0:
                data[start : start + size] = chance.randbytes(size)
            case 1:
                data[start:start] = chance.randbytes(chance.randint(1, 8))
            case 2:
                del data[start : start + size]
            case 3:
                data[start : start + size] = chance.choice((b"\0", b"\xff", b"\xce", b"\x7f")) * size
            case 4:
                other = chance.choice(corpus)
                data[start:] = other[min(start, len(other)) :]
    return bytes(data)


def main() -> None:
    sys.path[:0] = [str(ROOT)]
    logging.getLogger("warrenmq").setLevel(logging.ERROR)
    logging.getLogger("warrenmq").propagate = False
    if sys.argv[1:2] == ["--compiled"]:
        fuzz_compiled(float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
    else:
        fuzz_guided(sys.argv)


if __name__ == "__main__":
    main()
