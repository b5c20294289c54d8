"""Write the blocking client's modules from their asyncio twins.

    python tools/unasync.py           write src/warrenmq/client/blocking/*.py
    python tools/unasync.py --check   exit 1 if a file differs from what would be written

`async` and `await` are removed and names are replaced (RENAMED). What else differs between the two, waiting and
locking, is in `aio/primitives.py` and `blocking/primitives.py`, which have the same names. A line that ends with `#
asyncio only` is left out; `# blocking only: code` becomes code. In docstrings `async def main()` and its `asyncio.run`
are unwrapped. Ruff formats the result.
"""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "src" / "warrenmq" / "client"
MODULES = (
    "channel",
    "consumer",
    "dedicated_channel",
    "group_member",
    "producer",
    "pull",
    "rpc",
    "service",
    "topic",
    "transaction",
)

RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "aio": "blocking",
    "connect_async": "connect",
    "wait_until_writable": "block_until_writable",
}


def render(name: str) -> str:
    """Return the text of blocking/<name>.py."""
    text = _select_lines((CLIENT / "aio" / f"{name}.py").read_text())
    text = _replace_tokens(text)
    text = re.sub(r"\bAwaitable\[(\w+)\]", r"\1", text)
    note = f"Written by tools/unasync.py from aio/{name}.py: change that, then run it."
    text = re.sub(r'\A"""(.*?)\n?"""', lambda found: f'"""{found[1]}\n\n{note}\n"""', text, count=1, flags=re.DOTALL)
    named = (f"--stdin-filename={CLIENT / 'blocking' / name}.py", "-")
    text = _ruff("check", "--fix-only", "--select=I,F401", "--quiet", *named, given=text)
    return _ruff("format", *named, given=text)


def _select_lines(text: str) -> str:
    kept = [line for line in text.splitlines(keepends=True) if not line.rstrip().endswith("# asyncio only")]
    return re.sub(r"# blocking only: ?", "", "".join(kept))


def _replace_tokens(text: str) -> str:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    parts: list[str] = []
    at = 0
    for start, end, replacement in _edits(text):
        first = starts[start[0] - 1] + start[1]
        parts += [text[at:first], replacement]
        at = starts[end[0] - 1] + end[1]
    return "".join([*parts, text[at:]])


def _edits(text: str) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token, following in itertools.pairwise(tokens):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            yield token.start, following.start, ""
        elif token.type == tokenize.NAME and token.string in RENAMED:
            yield token.start, token.end, RENAMED[token.string]
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield token.start, token.end, _prose(token.string)


def _prose(text: str) -> str:
    text = _unwrap_main(text)
    text = re.sub(r"^ *On asyncio, .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"asyncio\.run\((run\(.*?\))\)", r"\1", text)
    text = re.sub(r"\bawait confirmation\b", "confirmation.result()", text)
    text = re.sub(r"\basync (?=with\b|for\b|def\b)|\bawait ", "", text)
    text = text.replace("from warrenmq.client import aio", "from warrenmq import client")
    return re.sub(r"\baio(?=\.[A-Za-z]+\b)", "client", text)


def _unwrap_main(text: str) -> str:
    """Turn an example in `async def main()` into plain statements; its body must be one statement."""
    kept: list[str] = []
    is_first = is_inside = False
    for line in text.split("\n"):
        bare = line.strip()
        if bare == ">>> async def main():":
            is_first = is_inside = True
        elif bare == ">>> asyncio.run(main())":
            is_inside = False
        elif bare == ">>> import asyncio":
            continue
        elif is_inside:
            prompt = ">>> " if is_first else "... "
            kept.append(line.replace("...     ", prompt, 1))
            is_first = False
        else:
            kept.append(line)
    return "\n".join(kept)


def _ruff(*arguments: str, given: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    differing = []
    for name in MODULES:
        path = CLIENT / "blocking" / f"{name}.py"
        text = render(name)
        if not path.exists() or path.read_text() != text:
            differing.append(path.name)
            if not is_check:
                path.write_text(text)
    if is_check and differing:
        print(f"not what tools/unasync.py writes: {', '.join(differing)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
