"""The examples in the docstrings, against a broker."""

from __future__ import annotations

import asyncio
import doctest
from types import ModuleType

import pytest

from warrenmq.client import aio, confirms, delivery
from warrenmq.client.aio import channel, connection, consuming


@pytest.mark.parametrize(
    "module", [aio, channel, connection, consuming, confirms, delivery], ids=lambda module: module.__name__
)
def test_examples_do_what_they_say(module: ModuleType, broker_url: str) -> None:
    known = {"url": broker_url, "aio": aio, "asyncio": asyncio, "connect": aio.connect}
    assert doctest.testmod(module, extraglobs=known).failed == 0
