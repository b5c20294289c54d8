"""A real Celery worker in a process of its own: success, failure, retry, ETA, groups, chains, late acks, kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import celery
import pika
import pytest

from .cable import Cable
from .celery_app import add, app, echo, fail, succeed_at_attempt, total, wait_for_release

ROOT = Path(__file__).parents[2]
PATIENCE = 40.0

StartWorker = Callable[..., subprocess.Popen[bytes]]


def until(is_so: Callable[[], Any], what: str) -> None:
    deadline = monotonic() + PATIENCE
    while not is_so():
        assert monotonic() < deadline, f"waited in vain for {what}"
        sleep(0.05)


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


@pytest.fixture(scope="module")
def start_worker(
    configured: celery.Celery, queue: str, broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartWorker]:
    workers: list[subprocess.Popen[bytes]] = []

    def start(url: str = broker_url, concurrency: int = 2) -> subprocess.Popen[bytes]:
        name = f"worker{len(workers)}-{queue}@interop"
        log = tmp_path_factory.mktemp("celery") / "worker.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.interop.celery_app", "worker", "--hostname", name]
        command += ["--concurrency", str(concurrency), "--loglevel", "INFO", "--logfile", str(log)]
        environment = {**os.environ, "INTEROP_CELERY_BROKER": url, "INTEROP_CELERY_QUEUE": queue}
        worker = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        workers.append(worker)
        # It answers over its own broadcast exchange and a reply queue of ours.
        until(lambda: configured.control.ping(destination=[name], timeout=1), f"the worker, which logs to {log}")
        return worker

    yield start
    for worker in workers:
        end(worker, signal.SIGTERM)


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
def worker(start_worker: StartWorker) -> subprocess.Popen[bytes]:
    return start_worker()


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

    def test_tasks_that_wait_long_do_not_hold_up_others(self, configured: celery.Celery) -> None:
        # More than the prefetch: it must grow for a consumer that is already there, or the worker would stand still.
        # kombu decides how to ask for that by the product and version that the broker announces.
        waiting = [add.apply_async((number, 1), countdown=3600) for number in range(20)]
        assert add.delay(1, 1).get(timeout=PATIENCE) == 2
        configured.control.revoke([result.id for result in waiting], reply=True, timeout=2)

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

    def test_worker_answers_inspection(self, configured: celery.Celery) -> None:
        answers = configured.control.inspect(timeout=2).registered()
        assert answers
        assert all("tests.interop.celery_app.add" in tasks for tasks in answers.values())

    def test_revoked_task_is_not_run(self, configured: celery.Celery) -> None:
        result = add.apply_async((1, 1), countdown=1)
        configured.control.revoke(result.id, reply=True, timeout=2)
        with pytest.raises(celery.exceptions.TaskRevokedError):
            result.get(timeout=PATIENCE)

    def test_task_acknowledged_late_runs_once_when_nothing_fails(self, tmp_path: Path) -> None:
        result = wait_for_release.delay(str(tmp_path))
        until(lambda: list(tmp_path.glob("begun.*")), "the task to begin")
        (tmp_path / "release").touch()
        assert result.get(timeout=PATIENCE) is False


@pytest.mark.timeout(180)
def test_task_of_a_killed_worker_is_run_by_another(start_worker: StartWorker, tmp_path: Path) -> None:
    # Only the worker that dies may take the task; the others come after.
    app.control.shutdown()
    until(lambda: not app.control.ping(timeout=1), "the other workers to end")
    doomed = start_worker(concurrency=1)
    result = wait_for_release.delay(str(tmp_path))
    until(lambda: list(tmp_path.glob("begun.*")), "the task to begin")
    end(doomed, signal.SIGKILL)
    heir = start_worker(concurrency=1)
    until(lambda: len(list(tmp_path.glob("begun.*"))) == 2, "the task to begin again")
    (tmp_path / "release").touch()
    assert result.get(timeout=PATIENCE) is True
    end(heir, signal.SIGTERM)


@pytest.mark.timeout(180)
def test_worker_comes_back_after_its_connection_was_cut(start_worker: StartWorker, cable: Cable) -> None:
    app.control.shutdown()
    until(lambda: not app.control.ping(timeout=1), "the other workers to end")
    cut_off = start_worker(cable.url, concurrency=1)
    assert add.delay(1, 2).get(timeout=PATIENCE) == 3
    made = cable.connections_made
    cable.cut()
    until(lambda: cable.connections_made > made, "the worker to connect again")
    assert add.delay(3, 4).get(timeout=PATIENCE) == 7
    end(cut_off, signal.SIGTERM)
