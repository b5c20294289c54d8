"""Builds both wheels into dist/ and tries each in a fresh environment (try_install.py).

    make wheel                     (or: python tools/build_wheels.py)

The platform wheel holds the compiled modules; the pure one (py3-none-any) runs everywhere, slower. A release builds the
platform wheels for all systems (.github/workflows/release.yml).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-qq")


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    for form in ("compiled", "uncompiled"):
        print(f"building the {form} wheel", flush=True)
        wheel = build(is_pure=form == "uncompiled")
        print(f"trying dist/{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) in a fresh environment", flush=True)
        try_wheel(wheel, form)
    print("both wheels install, start and deliver")
    return 0


def build(*, is_pure: bool) -> Path:
    """Build one wheel; returns its path."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # a file deleted from src would live on there
    before = set(DIST.glob("*.whl"))
    environment = os.environ | ({"WARREN_PURE": "1"} if is_pure else {"WARREN_REQUIRE_COMPILED": "1"})
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(DIST), str(ROOT))
    subprocess.run([*PIP, *wheel], check=True, env=environment)
    (built,) = set(DIST.glob("*.whl")) - before
    return built


def try_wheel(wheel: Path, form: str) -> None:
    with tempfile.TemporaryDirectory(prefix="warren-wheel-") as folder:
        venv.create(folder)
        python = Path(folder) / "bin" / "python"
        requirements = ("--only-binary", ":all:", "-c", str(ROOT / "constraints.txt"), str(wheel))
        subprocess.run([*PIP, "--python", str(python), "install", *requirements], check=True)
        # Away from the sources: only what was installed is imported.
        subprocess.run([python, str(ROOT / "tools" / "try_install.py"), form], check=True, cwd=folder)


if __name__ == "__main__":
    sys.exit(main())
