"""Results of the analysis: GET /api/analysis lists the jobs, GET /api/analysis/{job} returns the rows of one.

A user needs the tag `monitoring` or `administrator`, and sees the rows of virtual hosts that the user may enter. Rows
without a virtual host need access to all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.management import analysis_reader, paging
from warrenmq.management.analysis import MAX_ROWS, JobResults, ResultBoard, ResultQuery, ResultSelection
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import BadRequest, NotFound
from warrenmq.management.responses import Json
from warrenmq.management.view import NodeView

PARAMETERS = frozenset({"from", "to", "window", "limit", "after"})
DEFAULT_ROWS = 5_000
MAX_WINDOW = 86_400
# An analysis that should be running is reported as silent after this many seconds without a message.
SILENCE = 30


def routes(node: NodeView, clock: Callable[[], float] = time.time) -> APIRouter:
    router = APIRouter()
    reader = analysis_reader.AnalysisReader(node.broker)

    @router.get("/analysis")
    async def jobs(request: Request) -> Response:
        node.require_monitoring(identity_of(request).name)
        await reader.catch_up(analysis_reader.JOBS_TIMEOUT)
        now = int(clock() * 1e6)
        board = reader.board
        return Json(
            {
                "jobs": [job_values(results, now) for results in board.jobs.values()],
                "board": board.id,
                "status": status_values(board, now),
                "exists": reader.exists,
                "behind": reader.unread,
                "skipped": reader.skipped,
                "complaint": reader.skip_reason,
                "tracing": dict(node.tracing_state()),
            }
        )

    @router.get("/analysis/{job:path}")
    async def rows(job: str, request: Request) -> Response:
        node.require_monitoring(identity_of(request).name)
        params = request.query_params
        paging.require_known(params, PARAMETERS)
        now = int(clock() * 1e6)
        start, end = paging.moment(params, "from", now), paging.moment(params, "to", now)
        if start is not None and end is not None and start > end:
            raise BadRequest("'from' is later than 'to'")
        limit = paging.whole_number(params, "limit", DEFAULT_ROWS, 1, MAX_ROWS)
        seconds = paging.whole_number(params, "window", 0, 1, MAX_WINDOW)
        after = paging.whole_number(params, "after", 0, 0, 999_999_999)
        await reader.catch_up(analysis_reader.ROWS_TIMEOUT)
        results = reader.board.jobs.get(job)
        if results is None:
            raise NotFound(f"no results of a job '{job}'; GET /api/analysis lists the jobs that have results")
        visible = node.visible_vhosts(identity_of(request).name)
        selection = results.select(ResultQuery(start, end, seconds * 1_000_000 or None, limit, after), visible)
        about = {"board": reader.board.id, "behind": reader.unread, **job_values(results, now)}
        return _rows_response(about, selection)

    return router


def job_values(results: JobResults, now: int) -> dict[str, Any]:
    """Return the description of a job, without its rows."""
    last = results.last
    assert last is not None
    return {
        "job": last.job,
        "title": last.title,
        "chart": last.chart,
        "mode": last.mode,
        "keys": list(last.keys),
        "written": paging.iso(last.written),
        "age_seconds": _age(last.written, now),
        "revision": results.revision,
        "row_count": results.row_count,
        "windows": [length / 1e6 for length in results.window_lengths()],
    }


def status_values(board: ResultBoard, now: int) -> dict[str, Any] | None:
    """Return the last reported state of the analysis; `silent` if its next report is overdue."""
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


def _rows_response(about: dict[str, Any], selection: ResultSelection) -> Response:
    """Build the response around rows that are rendered already."""
    about["present"] = [paging.iso(start) for start in selection.windows]
    about["changed"] = [paging.iso(start) for start in selection.changed]
    about["window_seconds"] = None if selection.window_length is None else selection.window_length / 1e6
    about["complete"] = selection.is_complete
    head = json.dumps(about, separators=(",", ":"), allow_nan=False).encode("ascii")
    body = head[:-1] + b',"rows":[' + b",".join(selection.rows) + b"]}"
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})
