"""A real Celery worker in a process of its own: success, failure, retry, ETA, groups, chains, late acks, kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import celery
import pika
import pytest

from tests.support.waiting import wait_until

from .celery_app import add, app, echo, fail, succeed_at_attempt, total, wait_for_release
from .proxy import Proxy

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def queue() -> str:
    return f"interop.celery.{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def configured(broker_url: str, queue: str) -> Iterator[celery.Celery]:
    """The application as the one who sends tasks sees it."""
    app.conf.broker_url = broker_url
    app.conf.task_default_queue = queue
    yield app
    app.pool.force_close_all()
    app.close()
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel = connection.channel()
    channel.queue_delete(queue)
    channel.exchange_delete(queue)
    connection.close()


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process; `name` is what it answers to."""

    name: str
    process: subprocess.Popen[bytes]


class Workers:
    """Starts them, and ends them all."""

    def __init__(self, queue: str, url: str, make_folder: Callable[[str], Path]) -> None:
        self._queue, self._url, self._make_folder = queue, url, make_folder
        self._started: list[Worker] = []

    def start(self, url: str | None = None, concurrency: int = 2) -> Worker:
        """One that answers, over its own broadcast exchange and a reply queue of ours."""
        name = f"worker{len(self._started)}-{self._queue}@interop"
        log = self._make_folder("celery") / "worker.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.interop.celery_app", "worker", "--hostname", name]
        command += ["--concurrency", str(concurrency), "--loglevel", "INFO", "--logfile", str(log)]
        own = {"INTEROP_CELERY_BROKER": url or self._url, "INTEROP_CELERY_QUEUE": self._queue}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | own,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started.append(Worker(name, process))
        wait_until(lambda: app.control.ping(destination=[name], timeout=1), f"the worker, which logs to {log}")
        return self._started[-1]

    def end_all(self) -> None:
        for worker in self._started:
            end(worker.process, signal.SIGTERM)


@pytest.fixture(scope="module")
def workers(
    configured: celery.Celery, queue: str, broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    made = Workers(queue, broker_url, tmp_path_factory.mktemp)
    yield made
    made.end_all()


def end(worker: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if worker.poll() is None:
        try:
            # TERM asks the worker to finish; KILL takes it and the processes of its pool.
            if how == signal.SIGKILL:
                os.killpg(worker.pid, how)
            else:
                worker.send_signal(how)
            worker.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture(scope="module")
def worker(workers: Workers) -> Worker:
    return workers.start()


@pytest.mark.usefixtures("worker")
class TestWithAWorker:
    def test_task_succeeds(self) -> None:
        assert add.delay(2, 3).get(timeout=PATIENCE) == 5

    def test_many_tasks_succeed(self) -> None:
        results = [add.delay(number, number) for number in range(50)]
        assert [result.get(timeout=PATIENCE) for result in results] == [2 * number for number in range(50)]

    def test_failure_comes_back_as_the_exception(self) -> None:
        with pytest.raises(ValueError, match="as expected"):
            fail.delay("as expected").get(timeout=PATIENCE)

    def test_task_is_retried_until_it_succeeds(self) -> None:
        assert succeed_at_attempt.delay(4).get(timeout=PATIENCE) == 4

    def test_countdown_and_eta_hold_a_task_back(self) -> None:
        # Tasks that wait are held unacknowledged, and the worker raises its prefetch for each.
        by_countdown = [add.apply_async((number, 1), countdown=0.5) for number in range(10)]
        by_eta = add.apply_async((2, 2), eta=datetime.now(UTC) + timedelta(seconds=0.5))
        assert add.delay(1, 1).get(timeout=PATIENCE) == 2
        assert by_eta.get(timeout=PATIENCE) == 4
        assert [result.get(timeout=PATIENCE) for result in by_countdown] == [number + 1 for number in range(10)]

    def test_tasks_that_wait_long_do_not_hold_up_others(self, worker: Worker) -> None:
        # More than the prefetch: it must grow for a consumer that is already there, or the worker would stand still.
        # kombu decides how to ask for that by the product and version that the broker announces.
        waiting = [add.apply_async((number, 1), countdown=3600) for number in range(20)]
        assert add.delay(1, 1).get(timeout=PATIENCE) == 2
        assert revoke(worker, *(result.id for result in waiting))

    def test_group_gathers_results(self) -> None:
        result = celery.group(add.s(number, 1) for number in range(10))()
        assert result.get(timeout=PATIENCE) == [number + 1 for number in range(10)]

    def test_chain_passes_results_on(self) -> None:
        result = celery.chain(add.s(1, 2), add.s(10), add.s(100))()
        assert result.get(timeout=PATIENCE) == 113

    def test_task_of_a_megabyte_comes_back_whole(self) -> None:
        text = "0123456789" * 100_000
        assert echo.delay(text).get(timeout=PATIENCE) == text

    def test_list_goes_through_a_task(self) -> None:
        assert total.delay(list(range(1000))).get(timeout=PATIENCE) == 499_500

    def test_worker_answers_inspection(self, worker: Worker) -> None:
        answers = app.control.inspect(destination=[worker.name], timeout=PATIENCE).registered()
        assert "tests.interop.celery_app.add" in answers[worker.name]

    def test_revoked_task_is_not_run(self, worker: Worker) -> None:
        for countdown in (1, 5, 25):
            due = monotonic() + countdown
            result = add.apply_async((1, 1), countdown=countdown)
            assert revoke(worker, result.id)
            if monotonic() < due:  # else the word came too late, on a busy machine
                break
        with pytest.raises(celery.exceptions.TaskRevokedError):
            result.get(timeout=PATIENCE)

    def test_task_acknowledged_late_runs_once_when_nothing_fails(self, tmp_path: Path) -> None:
        result = wait_for_release.delay(str(tmp_path))
        wait_until(lambda: list(tmp_path.glob("begun.*")), "the task to begin")
        (tmp_path / "release").touch()
        assert result.get(timeout=PATIENCE) is False


def revoke(worker: Worker, *tasks: str) -> Any:
    """What the worker answers, as soon as it does."""
    return app.control.revoke(list(tasks), reply=True, destination=[worker.name], timeout=PATIENCE)


def test_task_of_a_killed_worker_is_run_by_another(workers: Workers, tmp_path: Path) -> None:
    # Only the worker that dies may take the task; the others come after.
    workers.end_all()
    doomed = workers.start(concurrency=1)
    result = wait_for_release.delay(str(tmp_path))
    wait_until(lambda: list(tmp_path.glob("begun.*")), "the task to begin")
    end(doomed.process, signal.SIGKILL)
    heir = workers.start(concurrency=1)
    wait_until(lambda: len(list(tmp_path.glob("begun.*"))) == 2, "the task to begin again")
    (tmp_path / "release").touch()
    assert result.get(timeout=PATIENCE) is True
    end(heir.process, signal.SIGTERM)


def test_worker_comes_back_after_its_connection_was_cut(workers: Workers, proxy: Proxy) -> None:
    workers.end_all()
    cut_off = workers.start(proxy.url, concurrency=1)
    assert add.delay(1, 2).get(timeout=PATIENCE) == 3
    made = proxy.connections_made
    proxy.cut()
    wait_until(lambda: proxy.connections_made > made, "the worker to connect again")
    assert add.delay(3, 4).get(timeout=PATIENCE) == 7
    end(cut_off.process, signal.SIGTERM)
