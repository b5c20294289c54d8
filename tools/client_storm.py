"""Keeps the client in a storm for minutes, or ten threads on one connection, and judges what came of it.

    python tools/client_storm.py                       storms of a minute each, five in all
    python tools/client_storm.py --minutes 60          an hour
    python tools/client_storm.py --seed 7              one storm again
    python tools/client_storm.py --face aio            the asyncio face (default: both in turn)
    python tools/client_storm.py --threads             ten threads publishing and acking on one connection, a minute
    python tools/client_storm.py --url amqp://...      a broker that runs already
    python tools/client_storm.py --rabbitmq            a private RabbitMQ, where it is installed

Without --url or --rabbitmq a `warren serve` of its own is started on a fresh data folder. What a storm is, and what is
judged, is told in tests/client/breaker/storm.py. Ends with 0 when nothing was amiss, otherwise with 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.brokers import running_rabbitmq  # noqa: E402 - the sources are beside this folder, not installed
from tests.client.behaviour.faces import Face, make_face  # noqa: E402
from tests.client.behaviour.traffic import Talker, run_talkers  # noqa: E402
from tests.client.breaker.storm import Storm  # noqa: E402
from tests.support.process import BrokerProcess  # noqa: E402

STORM_SECONDS = 60.0
THREADS = 10


def main() -> int:
    options = read_options()
    with broker(options) as url:
        if options.threads:
            return sum(talk(name, url, options.minutes * 60) for name in options.face)
        return storm(options, url)


def storm(options: argparse.Namespace, url: str) -> int:
    """Storms until the time is over, the faces in turn; 1 if one of them went wrong."""
    deadline = time.monotonic() + options.minutes * 60
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    failures = rounds = 0
    while rounds == 0 or (options.seed is None and time.monotonic() + 1 < deadline):
        face = make_face(options.face[rounds % len(options.face)])
        seconds = min(STORM_SECONDS, max(deadline - time.monotonic(), 5.0))
        print(f"storm {rounds + 1} on the {face.name} face, seed {seed}", flush=True)
        tally = Storm(face, url, seed, seconds, report=say).run()
        face.close()
        say(str(tally))
        for problem in tally.problems:
            say(f"PROBLEM: {problem}")
        failures += bool(tally.problems)
        rounds += 1
        seed = (seed + 1) % 2**32
    print(f"{rounds} storms, {failures} with problems")
    return int(failures > 0)


def talk(name: str, url: str, seconds: float) -> int:
    """Ten threads on one connection, each with a channel; 1 if anything went wrong."""
    face: Face = make_face(name)
    connection = face.connect(url)
    talkers = [Talker(connection, number) for number in range(THREADS)]
    run_talkers(talkers, seconds)
    failures = 0
    for talker in talkers:
        try:
            talker.judge()
        except AssertionError as failure:
            failures += 1
            say(f"PROBLEM in thread {talker.number}: {talker.failures[:5]} {failure}")
    connection.close()
    left = face.leftovers()
    face.close()
    total = sum(talker.received for talker in talkers)
    print(f"{name}: {THREADS} threads, {total} messages published, confirmed, consumed and acked; left running: {left}")
    return int(failures > 0 or bool(left))


def say(text: str) -> None:
    print("  " + text.replace("\n", "\n  "), flush=True)


@contextmanager
def broker(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url
    elif options.rabbitmq:
        with running_rabbitmq() as endpoint:
            yield f"amqp://guest:guest@127.0.0.1:{endpoint.port}/%2F"
    else:
        with (
            tempfile.TemporaryDirectory(prefix="warren-storm-") as folder,
            BrokerProcess(Path(folder) / "data") as process,
        ):
            process.ready()
            yield f"amqp://guest:guest@127.0.0.1:{process.address.port}/%2F"
            process.stop()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="how long in all (default: 5, with --threads 1)")
    parser.add_argument("--seed", type=int, help="one storm with this seed")
    parser.add_argument("--face", choices=["blocking", "aio"], action="append", help="default: both")
    parser.add_argument("--threads", action="store_true", help="ten threads on one connection instead")
    parser.add_argument("--url", help="a broker that runs already")
    parser.add_argument("--rabbitmq", action="store_true", help="a private RabbitMQ")
    options = parser.parse_args()
    options.minutes = options.minutes or (1.0 if options.threads else 5.0)
    options.face = options.face or ["blocking", "aio"]
    return options


if __name__ == "__main__":
    sys.exit(main())
