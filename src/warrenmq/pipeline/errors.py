"""Errors of the pipeline. Their texts say what to do next; Spark shows them as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

OWN_ERROR = re.compile(r"warrenmq\.[\w.]+: (?P<text>\S.*)")
ANY_ERROR = re.compile(r"(?:py4j\.\S+: )?(?P<text>[A-Za-z_][\w.]*(?:Error|Exception|Failed|Lost|Closed): \S.*)")


class PipelineError(Exception):
    """Base of the errors of the source and the sink."""


class BadOption(PipelineError, ValueError):
    """An option is unknown, missing or invalid."""


class NotAStream(PipelineError):
    """The queue to read does not exist, or is a classic queue."""


class BrokerUnreachable(PipelineError, ConnectionError):
    """The broker did not answer within `retryTimeout`."""


class DataLost(PipelineError):
    """Records of a range are gone: removed by the stream's limits, or the stream was deleted and created again."""


class BadPayload(PipelineError, ValueError):
    """The body of a message does not match the option `payload`."""


class AnalysisFailed(Exception):
    """The analysis ended; the text says why and what to do."""


class FollowFailed(AnalysisFailed):
    """A streaming query failed for good."""


class CheckpointMismatch(AnalysisFailed):
    """The checkpoint folder was made with other options, or is incomplete."""


class CheckpointInUse(AnalysisFailed):
    """Another process uses this checkpoint."""


def short_reason(text: str) -> str:
    """Return the line of a Spark error text that says why: an error of ours, else any error, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (OWN_ERROR, ANY_ERROR):
        for line in lines:
            if found := pattern.match(line):
                return found["text"]
    return lines[0] if lines else text


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn errors of Spark, which have pages of text, into AnalysisFailed with one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as failure:
        raise AnalysisFailed(short_reason(str(failure))) from failure
