"""`warren check DIR`: lists the contents of a data folder and checks it for damage.

Standard output has the report, as text for 80 columns or with `--json`; a progress bar is shown on standard error if it
is a terminal. Exit codes: 0 no damage, 1 damage found, 2 the folder cannot be read. The work is done in
`storage/check.py`; it changes nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from warrenmq.cli.console import output_console
from warrenmq.cli.printable import printable
from warrenmq.cli.progress import progress_bar
from warrenmq.storage.check import CheckError, CheckReport, Finding, FoundQueue, check_folder

CLEAN, DAMAGED, UNREADABLE = 0, 1, 2
TOP_QUEUES = 20
NAMES = {"folder": "folder (lock, version)"}


def check(folder: Path, as_json: bool) -> int:
    """Check the folder and print the report; return the exit code."""
    try:
        with progress_bar() as progress:
            report = check_folder(str(folder), progress)
    except CheckError as error:
        if as_json:
            print(json.dumps({"folder": str(folder), "result": "unreadable", "error": str(error)}))
        else:
            print(f"warren: {printable(str(error))}", file=sys.stderr)
        return UNREADABLE
    if as_json:
        print(json.dumps(plain_values(report), indent=2))
    else:
        show(report, output_console())
    return DAMAGED if report.damage else CLEAN


def plain_values(report: CheckReport) -> dict[str, Any]:
    """Return the report as a JSON object."""
    values = asdict(report)
    values["result"] = "damaged" if report.damage else "clean"
    values["messages"] = report.messages
    values["lost_messages"] = report.lost_messages
    return values


def show(report: CheckReport, console: Console) -> None:
    console.print(Text(f"Data folder {printable(report.folder)}"))
    console.print(Text(printable(_summary(report))))
    console.print(_compared(report), highlight=False)
    console.print(_kinds_table(report))
    for title, findings in (("Damage", report.damage), ("Remarks", report.remarks)):
        if findings:
            console.print(title, style="bold")
        for finding in findings:
            console.print(_finding_text(finding))
    if report.messages:
        console.print(_queues_table(report.queues))
    console.print(_verdict(report))


def _compared(report: CheckReport) -> str:
    """Describe what was compared, which limits the verdict."""
    if report.has_manifest:
        return f"compared with the manifest: {_number(report.recorded_files, 'file')}"
    return "no manifest: missing files cannot be detected"


def _summary(report: CheckReport) -> str:
    parts = [f"format {report.version or 'unknown'}"]
    if report.last_epoch:
        parts.append(f"epochs {report.first_epoch} to {report.last_epoch} in the log")
    if report.applied_epoch:
        parts.append(f"catalog at epoch {report.applied_epoch}")
    return ", ".join(parts)


def _kinds_table(report: CheckReport) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Files", title_justify="left", pad_edge=False)
    table.add_column("kind")
    for heading in ("files", "size", "damaged", "remarks"):
        table.add_column(heading, justify="right")
    for kind in report.kinds:
        counts = [str(kind.damaged) if kind.damaged else "-", str(kind.remarks) if kind.remarks else "-"]
        style = "red" if kind.damaged else ""
        table.add_row(NAMES.get(kind.name, kind.name), f"{kind.files:,}", decimal(kind.size), *counts, style=style)
    return table


def _finding_text(finding: Finding) -> Text:
    """Return indented lines: file, finding, queue and loss."""
    text = Text(f"  {printable(finding.file)}\n", style="red" if finding.is_damage else "yellow")
    text.append(f"    {printable(finding.text)}\n", style="default")
    if finding.queue:
        text.append(f"    queue: {printable(finding.queue)}\n", style="default")
    if finding.lost:
        text.append(f"    lost: {printable(finding.lost)}\n", style="bold")
    text.rstrip()
    return text


def _queues_table(queues: list[FoundQueue]) -> Table:
    shown = [queue for queue in queues[:TOP_QUEUES] if queue.messages]
    more = sum(queue.messages > 0 for queue in queues) - len(shown)
    title = f"Messages ({len(shown)} fullest queues of {len(shown) + more:,})" if more else "Messages"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    table.add_column("virtual host", overflow="fold")
    table.add_column("queue", overflow="fold")
    table.add_column("type")
    table.add_column("folder", justify="right")
    table.add_column("messages", justify="right", no_wrap=True)
    for queue in shown:
        names = (Text(printable(queue.vhost)), Text(printable(queue.name)), Text(printable(queue.type)))
        table.add_row(*names, f"queues/{queue.id}", f"{queue.messages:,}")
    return table


def _verdict(report: CheckReport) -> Text:
    held = f"{_number(len(report.queues), 'durable queue')}, {_number(report.messages, 'message')}"
    if report.damage:
        lost = f"up to {_number(report.lost_messages, 'message')} lost, " if report.lost_messages else ""
        return Text(f"DAMAGED in {_number(len(report.damage), 'place')}; {lost}{held} left", style="bold red")
    remarks = f"; {_number(len(report.remarks), 'remark')}" if report.remarks else ""
    return Text(f"clean: {held}{remarks}", style="bold green")


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
