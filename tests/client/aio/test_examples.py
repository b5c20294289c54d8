"""Docstring examples of the asyncio face, run against a broker."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import pkgutil

import pytest

from warrenmq.client import aio

MODULES = [aio.__name__] + [each.name for each in pkgutil.walk_packages(aio.__path__, "warrenmq.client.aio.")]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, broker_url: str) -> None:
    known = {"url": broker_url, "aio": aio, "asyncio": asyncio, "connect": aio.connect}
    assert doctest.testmod(importlib.import_module(module), extraglobs=known).failed == 0
