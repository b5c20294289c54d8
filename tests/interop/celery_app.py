"""The Celery application that test_celery.py runs a real worker of. It is configured by the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

app = Celery("interop", broker=os.environ.get("INTEROP_CELERY_BROKER", "memory://"), backend="rpc://")
app.conf.update(
    task_default_queue=os.environ.get("INTEROP_CELERY_QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
    broker_connection_retry=True,
    broker_connection_max_retries=100,
    worker_prefetch_multiplier=2,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    result_expires=600,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def fail(reason: str) -> None:
    raise ValueError(reason)


@app.task(bind=True, max_retries=5)
def succeed_at_attempt(self: Task, attempt: int) -> int:
    """Fails and is retried until the given attempt."""
    if self.request.retries + 1 < attempt:
        raise self.retry(countdown=0.05)
    return int(self.request.retries) + 1


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def wait_for_release(self: Task, folder: str) -> bool:
    """Says that it has begun, waits for a file named `release`, and tells whether it was delivered before."""
    (Path(folder) / f"begun.{os.getpid()}").touch()
    while not (Path(folder) / "release").exists():
        time.sleep(0.05)
    return bool(self.request.delivery_info["redelivered"])


@app.task
def echo(value: Any) -> Any:
    return value
