"""Streaming queries in tests: run to their end, in bounded time, also on a crowded machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LIMIT = 120  # seconds that a query may take
ATTEMPTS = 5

# Spark waits ten seconds for a Python process to connect, which cannot be set.
TOO_CROWDED = "failed to connect back"

Result = TypeVar("Result")


def patiently(action: Callable[[], Result]) -> Result:
    """Do this, and again where only the machine was too slow for Spark; so it has to bear being done twice."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except Exception as error:
            if TOO_CROWDED not in str(error):
                raise
    return action()


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that ends by itself, and wait for that; raises what it failed with."""

    def run() -> StreamingQuery:
        query = start()
        try:
            assert query.awaitTermination(LIMIT), f"the query did not end within {LIMIT} s"
        finally:
            query.stop()
        return query

    return patiently(run)
