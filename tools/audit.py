"""Attacks a broker, its data folder and its client, and prints one table of verdicts.

    python tools/audit.py                   everything, about 20 minutes
    python tools/audit.py --fuzz 30         a shorter fuzz
    python tools/audit.py guessing fuzz     only the checks with these words in their names

Every attack runs against a real `warren serve` with a well-behaved client beside it (tests/audit). The other checks run
in processes of their own: pytest for damaged files and the client's promises, the fuzzer with Python's debug allocator,
and pip-audit for known vulnerabilities of the dependencies.

Exits with 0 if nothing failed; a check that cannot run here is shown as "not run" with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.audit import unauthenticated, users  # noqa: E402 - the tests are found beside this folder
from tests.audit.target import Attack, Scale, attacked  # noqa: E402

FUZZ_SECONDS = 300
EFFORT = {"WARREN_TEST_EFFORT": "5"}  # times as many random cases as in the test suite
STYLES = {"held": "green", "FAILED": "bold red", "not run": "yellow"}


class NotRun(Exception):
    """The check cannot run on this machine; the text says why."""


class Failed(Exception):
    """The check found something; the text says what."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table. `run` returns a line for it, or raises Failed, NotRun or anything else."""

    group: str
    name: str
    run: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Verdict:
    check: Check
    outcome: str  # a key of STYLES
    detail: str
    seconds: float


def replay(attack: Attack) -> str:
    folder = Path(tempfile.mkdtemp(prefix="warren-audit-"))
    try:
        return attacked(folder / "data", attack, Scale(is_full=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_tests(*selection: str) -> str:
    """Run a part of the test suite, with more random cases than usual."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | EFFORT, capture_output=True, text=True)
    summary = re.findall(r"^(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in ", ended.stdout, re.MULTILINE)
    if ended.returncode:
        faults = re.findall(r"^FAILED (.*)$", ended.stdout, re.MULTILINE)
        raise Failed("; ".join(faults[:3]) or ended.stdout[-300:])
    return f"{summary[-1]}" if summary else "passed"


def fuzz(seconds: int) -> str:
    """Random input to the compiled modules, with an allocator that detects writes out of bounds."""
    command = [sys.executable, "tests/fuzz/fuzz_protocol.py", "--compiled", str(seconds)]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONMALLOC": "debug"}, capture_output=True, text=True
    )
    if "not compiled here" in ended.stderr:
        raise NotRun("the modules are not compiled here")
    if ended.returncode:
        raise Failed(f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]}")
    return " ".join(ended.stdout.split("\n")).strip()


def audit_dependencies() -> str:
    """Known vulnerabilities of what is installed, by pip-audit."""
    if importlib.util.find_spec("pip_audit") is None:
        raise NotRun("pip-audit is not installed (make audit installs it)")
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        packages = json.loads(ended.stdout)["dependencies"]
    except ValueError:
        raise NotRun(f"no vulnerability service answers: {ended.stderr.strip()[-100:]}") from None
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        raise NotRun("the vulnerability service knows none of the packages: it cannot be reached from here")
    found = [
        f"{package['name']} {package['version']}: {fault['id']}" for package in audited for fault in package["vulns"]
    ]
    if found:
        raise Failed("; ".join(found))
    return f"{len(audited)} packages without a known vulnerability, {len(packages) - len(audited)} unknown"


def all_checks(fuzz_seconds: int) -> list[Check]:
    checks = [Check("network peers", attack.name, partial(replay, attack)) for attack in unauthenticated.ATTACKS]
    checks += [Check("users", attack.name, partial(replay, attack)) for attack in users.ATTACKS]
    tests = (
        ("data folder", "damaged files", "tests/adversity/test_file_damage.py", "tests/adversity/test_damage.py"),
        ("data folder", "bit rot at run time", "tests/adversity/test_bit_rot.py"),
        ("data folder", "other users", "tests/storage/test_data_dir.py"),
        ("data folder", "dead space", "tests/adversity/test_dead_space.py", "tests/properties/test_dead_space.py"),
        ("client", "nothing lost silently", "tests/client/behaviour", "tests/client/patterns"),
        ("protocol", "malformed input", "tests/properties/test_conversations.py", "tests/properties/test_chunking.py"),
    )
    checks += [Check(group, name, partial(run_tests, *selection)) for group, name, *selection in tests]
    checks.append(Check("protocol", "fuzz, debug allocator", partial(fuzz, fuzz_seconds)))
    checks.append(Check("dependencies", "known vulnerabilities", audit_dependencies))
    return checks


def judge(check: Check) -> Verdict:
    began = time.monotonic()
    try:
        outcome, detail = "held", check.run()
    except NotRun as reason:
        outcome, detail = "not run", str(reason)
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is this row's verdict
        outcome, detail = "FAILED", str(failure) or repr(failure)
    return Verdict(check, outcome, detail, time.monotonic() - began)


def table_of(verdicts: Sequence[Verdict]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("against", "check", "verdict", "s", "detail"):
        table.add_column(heading, justify="right" if heading == "s" else "left", no_wrap=heading in ("verdict", "s"))
    for verdict in verdicts:
        style = STYLES[verdict.outcome]
        cells = [verdict.check.group, verdict.check.name, Text(verdict.outcome, style), f"{verdict.seconds:.0f}"]
        table.add_row(*cells, Text(verdict.detail[:400]))
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="audit.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="words: run only the checks with one of them in their names")
    parser.add_argument("--fuzz", type=int, default=FUZZ_SECONDS, metavar="SECONDS", help="how long to fuzz (300)")
    options = parser.parse_args(arguments)
    checks = all_checks(options.fuzz)
    if options.only:
        checks = [check for check in checks if any(word in check.name for word in options.only)]
    if not checks:
        parser.error(f"no such check; there are: {', '.join(check.name for check in all_checks(0))}")
    console = Console() if sys.stdout.isatty() else Console(width=140)
    verdicts = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("audit", total=len(checks))
        for check in checks:
            progress.update(task, description=f"{check.name:24}")
            verdicts.append(judge(check))
            progress.advance(task)
            if not console.is_terminal:
                last = verdicts[-1]
                console.print(f"{last.outcome:8} {check.name}: {last.detail[:200]}", markup=False, highlight=False)
    console.print(table_of(verdicts))
    counts = {outcome: sum(verdict.outcome == outcome for verdict in verdicts) for outcome in STYLES}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    console.print(told, style="bold red" if counts["FAILED"] else "bold green", highlight=False)
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
