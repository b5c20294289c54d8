"""The report: one HTML file that shows answers as the broker's pages do, and asks nobody for anything.

The pages' own modules are put into one script (`bundle`), plotly.js comes from the installed package, the rows lie in
the file as JSON. The file says itself, by its content policy, that nothing may be loaded from elsewhere. Without
plotly the charts that need it are tables.
"""

from __future__ import annotations

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
ENTRY = "report.js"
STATUS = "status"  # a document of the stream that is about the analysis, not about messages
MAX_ROWS = 20_000  # of one job: a browser draws no more than that with pleasure
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

_IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)

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
<script>
"use strict";
{script}
</script>
</body>
</html>
"""


def write_report(path: Path, answers: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the file, whole or not at all. `answers` are documents of the stream, `about` what stands at its head."""
    page = report_page(answers, about)
    # The page is complete before its name points to it: a browser that reloads never sees half of it.
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
    """The report as text."""
    data = {"about": dict(about), "answers": [_shown(answer) for answer in _joined(answers)]}
    return PAGE.format(
        policy=POLICY,
        title="WarrenMQ analysis",
        style=_inert((ui / "base.css").read_text("utf-8"), "style"),
        theme=_inert((ui / "theme.js").read_text("utf-8")),
        data=_inert_json(data),
        plotly=_inert(_plotly()),
        script=_inert(bundle(ENTRY, ui)),
    )


def bundle(entry: str, ui: Path = UI) -> str:
    """A module and all that it imports as one plain script: each becomes a function that gives what it exports."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        text = (ui / name).read_text("utf-8")
        for _, needed in _IMPORT.findall(text):
            add(needed)
        parts[name] = _as_function(name, text)

    add(entry)
    return "const modules = {};\n" + "\n".join(parts.values())


def _as_function(name: str, text: str) -> str:
    exported = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub(_taken, text))
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise ValueError(f"{name} imports or exports in a way that the report cannot follow")
    given = ", ".join(exported)
    return f"modules[{json.dumps(name)}] = (() => {{\n{body}\nreturn {{ {given} }};\n}})();"


def _taken(found: re.Match[str]) -> str:
    return f"const {{ {found[1].replace(' as ', ': ')} }} = modules[{json.dumps(found[2])}];\n"


def _joined(answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One answer for each job: an answer may come in several parts."""
    found: dict[str, dict[str, Any]] = {}
    for answer in answers:
        if answer["job"] == STATUS:
            continue
        known = found.setdefault(answer["job"], {**answer, "rows": []})
        known["rows"].extend(answer["rows"])
    return list(found.values())


def _shown(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What the report needs of an answer: the newest rows, the oldest first."""
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
    """JSON that cannot end the element it stands in, whatever names it holds."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _inert(text: str, element: str = "script") -> str:
    """A script or style that does not end its element early; inside its strings this is the same text."""
    text = re.sub(f"</(?={element})", r"<\\/", text, flags=re.IGNORECASE)
    return text.replace("<!--", r"<\!--")


def _plotly() -> str:
    """The script of the installed `plotly` package, which itself is not imported; nothing without it."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return ""
    return (Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_text("utf-8")
