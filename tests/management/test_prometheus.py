"""The text that Prometheus scrapes."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import warrenmq
from warrenmq.core.snapshot import Overview
from warrenmq.management import prometheus

BY_REASON = {metric.field for metric in prometheus.REASON_METRICS}
NUMBERS: dict[str, Any] = {
    entry.name: {"expired": place} if entry.name in BY_REASON else place
    for place, entry in enumerate(fields(Overview), start=100)
}


def scrape() -> dict[str, float]:
    text = prometheus.render(Overview(**NUMBERS), loop_lag=0.25, version="1.2")
    samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_every_field_of_the_overview_is_published_with_its_value() -> None:
    published: dict[str, Any] = {metric.field: scrape()[metric.name] for metric in prometheus.METRICS}
    for metric in prometheus.REASON_METRICS:
        published[metric.field] = {"expired": scrape()[f'{metric.name}{{reason="expired"}}']}
    assert published == NUMBERS


def test_version_and_loop_lag_are_published() -> None:
    assert scrape()['warren_build_info{version="1.2"}'] == 1
    assert scrape()["warren_loop_lag_seconds"] == 0.25


def test_every_figure_of_the_storage_is_published_with_its_value(tmp_path: Path) -> None:
    with warrenmq.Broker(data_dir=tmp_path) as broker:
        assert broker._node is not None
        figures = broker._node.figures()
    assert figures.keys() == {metric.field for metric in prometheus.STORAGE_METRICS}
    samples = prometheus.render(Overview(**NUMBERS), loop_lag=0.0, version="1", figures=figures).splitlines()
    for metric in prometheus.STORAGE_METRICS:
        assert f"{metric.name} {figures[metric.field]}" in samples


def test_refused_connections_are_published_by_reason() -> None:
    text = prometheus.render(Overview(**NUMBERS), loop_lag=0.0, version="1", refused={"http": 3, "max_connections": 0})
    lines = [line for line in text.splitlines() if line.startswith("warren_connections_refused_total")]
    assert lines == [
        'warren_connections_refused_total{reason="http"} 3',
        'warren_connections_refused_total{reason="max_connections"} 0',
    ]


def test_counters_end_in_total_and_every_metric_is_described_once() -> None:
    figures = {metric.field: 1 for metric in prometheus.STORAGE_METRICS}
    text = prometheus.render(
        Overview(**NUMBERS),
        loop_lag=0.0,
        version="1",
        figures=figures,
        refused={"http": 3},
        memory={"unacked": 1},
        resident_bytes=1,
    )
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    described = re.findall(r"^# HELP (\S+) .+\.$", text, re.MULTILINE)
    assert described == list(kinds)
    # The second is the name that Prometheus has for it in every process.
    assert all(name.startswith(("warren_", "process_resident_memory_bytes")) for name in kinds)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    assert text.endswith("\n")


def test_memory_is_published_by_kind() -> None:
    text = prometheus.render(
        Overview(**NUMBERS), loop_lag=0.0, version="1", memory={"unacked": 7, "routes": 8}, resident_bytes=9
    )
    assert 'warren_memory_bytes{kind="unacked"} 7\n' in text
    assert 'warren_memory_bytes{kind="routes"} 8\n' in text
    assert "process_resident_memory_bytes 9\n" in text


def test_label_values_are_escaped() -> None:
    assert prometheus._escaped('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
