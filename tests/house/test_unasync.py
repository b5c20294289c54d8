"""The blocking modules that tools/unasync.py writes are what it would write now."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_modules_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "unasync.py"), "--check"]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
