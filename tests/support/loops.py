"""Tests that need an event loop get one of their own, of the kind that a broker runs on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from warrenmq.embedded import event_loop_factory

Arguments = ParamSpec("Arguments")


def on_a_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Make an ordinary test of a coroutine."""

    @functools.wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(test(*args, **kwargs))

    return run
