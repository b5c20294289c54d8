"""The documented example runs, and adds up right."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tests.pipeline.source.queries import patiently
from warrenmq import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders_on_spark.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("orders_on_spark", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(count: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    draw = random.Random(seed)
    orders: Counter[str] = Counter()
    worth: Counter[str] = Counter()
    for _ in range(count):
        country = draw.choice(("AT", "CH", "DE", "FR"))
        orders[country] += 1
        worth[country] += draw.randrange(100, 10_000)
    return orders, worth


def test_orders_are_added_up_and_published_back(spark: SparkSession, tmp_path: Path) -> None:
    example = load()
    with Broker() as broker:
        example.place_orders(broker.url, 200, seed=1)
        patiently(lambda: example.publish_totals(spark, broker.url, str(tmp_path)))
        example.place_orders(broker.url, 100, seed=2)
        patiently(lambda: example.publish_totals(spark, broker.url, str(tmp_path)))
        found = example.latest_totals(spark, broker.url)
    first, second = expected(200, 1), expected(100, 2)
    orders, worth = first[0] + second[0], first[1] + second[1]
    assert {country: (count, Decimal(total)) for country, (count, total) in found.items()} == {
        country: (orders[country], Decimal(worth[country]) / 100) for country in orders
    }
