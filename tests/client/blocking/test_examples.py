"""The examples in the docstrings of the client, run against a broker; those of aio have tests of their own."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from warrenmq import client

MODULES = [client.__name__] + [
    each.name for each in pkgutil.walk_packages(client.__path__, "warrenmq.client.") if ".aio" not in each.name
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, broker_url: str) -> None:
    results = doctest.testmod(importlib.import_module(module), extraglobs={"url": broker_url})
    assert results.failed == 0
