"""Results on the stream of a real broker: the documents' example, and what is left after a restart."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

import warrenmq
from tests.management.asking import GUEST

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "analysis-pages.md").read_text(), re.DOTALL)[0]
URL = "amqp://guest:guest@127.0.0.1:5672/"


def asked(broker: warrenmq.Broker, path: str) -> Any:
    response = httpx.get(broker.http_url + path, auth=GUEST, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_example_has_a_card_and_keeps_it_after_a_restart(tmp_path: Path) -> None:
    assert URL in EXAMPLE
    with warrenmq.Broker(http=True, data_dir=tmp_path) as broker:
        code = EXAMPLE.replace(URL, broker.url)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        told = asked(broker, "/api/analysis/sales")
        assert [(row["shop"], row["sold"]) for row in told["rows"]] == [("Oslo", 17), ("Rome", 40)]
        streams = asked(broker, "/api/streams")["streams"]
        assert streams == [{"name": "warren.analysis", "vhost": "/", "first_offset": 0, "next_offset": 1}]
    with warrenmq.Broker(http=True, data_dir=tmp_path) as broker:
        assert asked(broker, "/api/analysis/sales")["rows"] == told["rows"]
        assert asked(broker, "/api/analysis")["jobs"][0]["title"] == "Sales by shop"
