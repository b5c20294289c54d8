"""What a connection counts."""

from __future__ import annotations

import inspect
import threading

from warrenmq.client.metrics import CountingMetrics, MetricsCollector


def test_every_hook_is_counted() -> None:
    metrics = CountingMetrics()
    for name, hook in inspect.getmembers(MetricsCollector, inspect.isfunction):
        before = metrics.counts()
        getattr(metrics, name)(*[1] * (len(inspect.signature(hook).parameters) - 1))
        assert metrics.counts() != before, name


def test_exposition_has_a_sample_and_a_type_for_each_family() -> None:
    metrics = CountingMetrics()
    metrics.connection_opened()
    metrics.channel_opened()
    metrics.channel_closed()
    metrics.delivered(5, size=50)
    lines = metrics.exposition().splitlines()
    samples = dict(line.split() for line in lines if not line.startswith("#"))
    assert samples["warren_client_connections"] == "1"
    assert samples["warren_client_channels"] == "0"
    assert samples["warren_client_messages_delivered_total"] == "5"
    assert samples["warren_client_delivered_bytes_total"] == "50"
    typed = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert typed.keys() == samples.keys()
    assert all((kind == "counter") == name.endswith("_total") for name, kind in typed.items())


def test_threads_do_not_lose_counts() -> None:
    metrics = CountingMetrics()

    def work() -> None:
        for _ in range(2000):
            metrics.published(1, size=3)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (metrics.counts().published, metrics.counts().published_bytes) == (16_000, 48_000)
