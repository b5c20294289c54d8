"""What the analysis has found: GET /api/analysis for the jobs, GET /api/analysis/{job} for the rows of one.

A user needs the tag `monitoring` or `administrator`, and sees rows about virtual hosts that the user may enter. Rows
that are about no virtual host are for users who may enter all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.management import analysis_reader, paging
from warrenmq.management.analysis import MOST_ROWS, Board, Findings, Selection, Wanted
from warrenmq.management.answers import Json
from warrenmq.management.auth import asker_of
from warrenmq.management.errors import BadRequest, NotFound
from warrenmq.management.view import NodeView

PARAMETERS = frozenset({"from", "to", "window", "limit", "after"})
USUAL_ROWS = 5_000
LONGEST_WINDOW = 86_400
# After so many seconds without a word, an analysis that should be running is said to be silent.
SILENCE = 30


def routes(node: NodeView, clock: Callable[[], float] = time.time) -> APIRouter:
    router = APIRouter()
    reader = analysis_reader.AnalysisReader(node.broker)

    @router.get("/analysis")
    async def jobs(request: Request) -> Response:
        node.require_monitoring(asker_of(request).name)
        await reader.catch_up(analysis_reader.PATIENCE)
        now = int(clock() * 1e6)
        board = reader.board
        return Json(
            {
                "jobs": [job_values(findings, now) for findings in board.jobs.values()],
                "board": board.id,
                "status": status_values(board, now),
                "exists": reader.exists,
                "behind": reader.behind,
                "skipped": reader.skipped,
                "complaint": reader.complaint,
                "tracing": dict(node.tracing_state()),
            }
        )

    @router.get("/analysis/{job:path}")
    async def rows(job: str, request: Request) -> Response:
        node.require_monitoring(asker_of(request).name)
        params = request.query_params
        paging.require_known(params, PARAMETERS)
        now = int(clock() * 1e6)
        start, end = paging.moment(params, "from", now), paging.moment(params, "to", now)
        if start is not None and end is not None and start > end:
            raise BadRequest("'from' is later than 'to'")
        limit = paging.whole_number(params, "limit", USUAL_ROWS, 1, MOST_ROWS)
        seconds = paging.whole_number(params, "window", 0, 1, LONGEST_WINDOW)
        after = paging.whole_number(params, "after", 0, 0, 999_999_999)
        await reader.catch_up(analysis_reader.SHORT_PATIENCE)
        findings = reader.board.jobs.get(job)
        if findings is None:
            raise NotFound(f"there are no results of a job '{job}'; /api/analysis lists those that there are")
        visible = node.visible_vhosts(asker_of(request).name)
        selection = findings.select(Wanted(start, end, seconds * 1_000_000 or None, limit, after), visible)
        about = {"board": reader.board.id, "behind": reader.behind, **job_values(findings, now)}
        return _told(about, selection)

    return router


def job_values(findings: Findings, now: int) -> dict[str, Any]:
    """What there is of a job, without its rows."""
    last = findings.last
    assert last is not None
    return {
        "job": last.job,
        "title": last.title,
        "chart": last.chart,
        "mode": last.mode,
        "keys": list(last.keys),
        "written": paging.iso(last.written),
        "age_seconds": _age(last.written, now),
        "revision": findings.revision,
        "row_count": findings.row_count,
        "windows": [length / 1e6 for length in findings.window_lengths()],
    }


def status_values(board: Board, now: int) -> dict[str, Any] | None:
    """How the analysis itself is doing, as it said last; `silent` if it should have said anything since."""
    last = board.status
    if last is None or last.status is None:
        return None
    newest = max([last.written, *(job.last.written for job in board.jobs.values() if job.last is not None)])
    return {
        **last.status,
        "mode": last.mode,
        "written": paging.iso(last.written),
        "age_seconds": _age(last.written, now),
        "silent": last.status.get("state") == "running" and _age(newest, now) > SILENCE,
    }


def _age(written: int, now: int) -> float:
    return max(0.0, round((now - written) / 1e6, 3))


def _told(about: dict[str, Any], selection: Selection) -> Response:
    """The rows are JSON already: they are put in, not written again."""
    about["present"] = [paging.iso(start) for start in selection.windows]
    about["changed"] = [paging.iso(start) for start in selection.changed]
    about["window_seconds"] = None if selection.window_length is None else selection.window_length / 1e6
    about["complete"] = selection.is_complete
    head = json.dumps(about, separators=(",", ":"), allow_nan=False).encode("ascii")
    body = head[:-1] + b',"rows":[' + b",".join(selection.rows) + b"]}"
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
