"""The report: one HTML file that shows answers as the broker's pages do, and loads nothing from elsewhere.

It holds the pages' own modules in an import map, plotly.js from the installed package, and the rows as JSON. Its
content security policy forbids all requests. Without plotly the charts are tables.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import warrenmq

UI = Path(warrenmq.__file__).parent / "management" / "ui"
STATUS = "status"  # the job that reports on the analysis itself
MAX_ROWS = 20_000  # per job: more are slow to draw in a browser
POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:"

PAGE = """<!doctype html>
<html lang="en" data-report>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
<script>
{theme}
</script>
</head>
<body><noscript>This report needs JavaScript.</noscript>
<script type="application/json" id="data">{data}</script>
<script>
{plotly}
</script>
<script type="importmap">{modules}</script>
<script type="module">import "ui/report.js";</script>
</body>
</html>
"""


def write_report(path: Path, answers: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the report atomically. `answers` are documents of the stream, `about` is shown at the head."""
    page = report_page(answers, about)
    # Renamed when complete: a browser that reloads never sees half of it.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(page)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def report_page(answers: Sequence[Mapping[str, Any]], about: Mapping[str, Any], ui: Path = UI) -> str:
    """Return the report as HTML."""
    data = {"about": dict(about), "answers": [_shown(answer) for answer in _joined(answers)]}
    return PAGE.format(
        policy=POLICY,
        title="WarrenMQ analysis",
        style=_inert((ui / "base.css").read_text("utf-8"), "style"),
        theme=_inert((ui / "theme.js").read_text("utf-8")),
        data=_inert_json(data),
        plotly=_inert(_plotly()),
        modules=_inert_json(import_map(ui)),
    )


def import_map(ui: Path = UI) -> dict[str, dict[str, str]]:
    """Return the pages' modules as data: URLs, which modules of the report import as "ui/NAME.js".

    "./NAME.js", as the pages import, cannot be resolved from a data: URL.
    """
    return {"imports": {f"ui/{path.name}": _data_url(path.read_text("utf-8")) for path in sorted(ui.glob("*.js"))}}


def _data_url(module: str) -> str:
    text = module.replace('from "./', 'from "ui/')
    return "data:text/javascript;base64," + base64.b64encode(text.encode()).decode()


def _joined(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join the parts of each job's answer."""
    found: dict[str, dict[str, Any]] = {}
    for answer in answers:
        if answer["job"] == STATUS:
            continue
        joined = found.setdefault(answer["job"], {**answer, "rows": []})
        joined["rows"].extend(answer["rows"])
    return list(found.values())


def _shown(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the report shows of an answer: the newest rows, oldest first."""
    rows = sorted(answer["rows"], key=lambda row: row.get("window_start") or "")
    return {
        "job": answer["job"],
        "title": answer.get("title") or answer["job"],
        "chart": answer.get("chart") or "table",
        "keys": list(answer.get("keys", ())),
        "rows": rows[-MAX_ROWS:],
        "left_out": max(0, len(rows) - MAX_ROWS),
    }


def _inert_json(value: Any) -> str:
    """Return JSON that cannot end its element, whatever names it holds."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _inert(text: str, element: str = "script") -> str:
    """Escape a script or style so that it does not end its element; in string literals the text stays the same."""
    text = re.sub(f"</(?={element})", r"<\\/", text, flags=re.IGNORECASE)
    return text.replace("<!--", r"<\!--")


def _plotly() -> str:
    """Return the script of the installed `plotly` package, without importing it; empty if it is not installed."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return ""
    return (Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_text("utf-8")
