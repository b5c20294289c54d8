"""Writes answers as Parquet: one folder per job, one file per run.

`DIR/throughput/2026-11-16T100000Z-1f0c.parquet`. A file is there whole or not at all. Columns are those of the job's
answer (docs/analysis-jobs.md), times are timestamps in UTC: what pandas, DuckDB and Spark read as it is.
"""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

from warrenmq.pipeline.publish.answers import Run

if TYPE_CHECKING:
    import pyarrow as pa


def write_parquet(folder: Path, job: str, table: pa.Table, run: Run) -> Path:
    """The file that now holds this answer."""
    from pyarrow import parquet

    started = run.started.astimezone(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = folder / job / f"{started}-{run.id[:8]}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    parquet.write_table(table, unfinished, compression="zstd")
    os.replace(unfinished, path)
    return path
