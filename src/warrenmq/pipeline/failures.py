"""What keeps an analysis from going on, in one line each: Spark's own texts have pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

OWN_ERROR = re.compile(r"warrenmq\.[\w.]+: (?P<text>\S.*)")
ANY_ERROR = re.compile(r"(?:py4j\.\S+: )?(?P<text>[A-Za-z_][\w.]*(?:Error|Exception|Failed|Lost|Closed): \S.*)")


class AnalysisFailed(Exception):
    """The analysis ended; the text says why and what to do."""


class FollowFailed(AnalysisFailed):
    """A query failed for good."""


class OtherCheckpoint(AnalysisFailed):
    """The checkpoint folder does not belong to what is asked for."""


class StoreInUse(AnalysisFailed):
    """Another process follows with this checkpoint."""


def reason_of(text: str) -> str:
    """The line of a Spark error that says why: an error of ours, else the first of anybody's, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (OWN_ERROR, ANY_ERROR):
        for line in lines:
            if found := pattern.match(line):
                return found["text"]
    return lines[0] if lines else text


@contextmanager
def plain_failures() -> Iterator[None]:
    """Errors of Spark's leave the block as AnalysisFailed."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as failure:
        raise AnalysisFailed(reason_of(str(failure))) from failure
