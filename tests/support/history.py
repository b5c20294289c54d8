"""A made-up history of a shop's messages, with faults at known times: what the analysis must find.

`make_history(messages, …)` returns the events as columns in the order of time, and the truth beside them. They become
a table (`table`), batches as the broker writes them, byte by byte (`batches`), or messages of a broker's stream
(`publish`). The same seed makes the same history. All of it is arrays: a million messages take some seconds.

The default hour begins at 09:30: at 09:45 traffic is eightfold for a minute, from 09:50 one routing key fails always,
from 10:00 one consumer settles nothing, from 10:15 one queue is slow for five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from warrenmq.events import arrow, schema
from warrenmq.events.ids import EPOCH_MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

START = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
EXCHANGE, VHOST = "shop", "/"
QUEUES = ("orders", "billing", "shipping", "audit")
REGIONS = ("eu", "us", "jp", "br", "in", "au", "za", "ca")
CONSUMERS = 4  # of each queue
POISON_KEY = "orders.broken"
LOST_KEY = "nowhere.eu"
BATCH_ROWS = 8192
_US = 1_000_000
_MISSING = -1


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, and when (seconds from the start); None or 0: it does not."""

    spike_at: float | None = 900.0
    spike_seconds: float = 60.0
    spike_factor: float = 8.0
    poison_at: float | None = 1200.0
    poison_messages: int = 5
    poison_attempts: int = 400
    stuck_at: float | None = 1800.0
    stuck_prefetch: int = 20
    slow_at: float | None = 2700.0
    slow_seconds: float = 300.0
    slow_factor: float = 100.0
    duplicates: int = 50
    unroutable: int = 200


ALL_FAULTS = Faults()
NO_FAULTS = Faults(spike_at=None, poison_at=None, stuck_at=None, slow_at=None, duplicates=0, unroutable=0)


@dataclass(frozen=True, slots=True)
class Truth:
    """What the analysis must find. Times are UTC."""

    published: int
    enqueued: int
    acked: int
    by_queue: dict[str, int]  # enqueued
    spike_at: datetime | None
    poison_at: datetime | None
    poison_failures: int  # nacks of the poison key
    stuck_consumer: str | None
    stuck_queue: str
    stuck_at: datetime | None
    outstanding: int  # what the stuck consumer holds at the end
    slow_queue: str
    slow_at: datetime | None
    duplicate_ids: frozenset[str]
    unroutable: int


@dataclass(frozen=True, slots=True)
class History:
    """`columns`: arrays by name, of one length, in the order of time; codes of names are indices of `names`."""

    columns: dict[str, Numbers]
    names: tuple[str, ...]
    message_ids: pa.StringArray
    correlation_ids: pa.StringArray
    truth: Truth

    @property
    def rows(self) -> int:
        return len(self.columns["time"])

    def table(self) -> pa.Table:
        """All events, names decoded: what Spark reads."""
        names = pa.array(self.names)
        found = {column.name: self._array(column, names) for column in schema.COLUMNS}
        return pa.table(found)

    def _array(self, column: schema.Column, names: pa.Array) -> pa.Array:
        values = self.columns.get(column.name)
        if column.type == schema.TEXT:
            return _texts_of(self, column.name, slice(None))
        if values is None:
            return pa.nulls(self.rows, _arrow_type(column.type))
        missing = (values == _MISSING) if column.is_nullable else None
        if column.type == schema.NAME:
            return names.take(pa.array(values, pa.int32(), mask=missing))
        return pa.array(values, mask=missing).cast(_arrow_type(column.type))

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[bytes]:
        """The bodies of the messages of an event log."""
        names = _encode_names(self.names)
        for start in range(0, self.rows, rows):
            yield _encode_batch(self, slice(start, min(start + rows, self.rows)), names)

    def publish(self, url: str, stream: str = schema.STREAM_NAME, rows: int = BATCH_ROWS) -> int:
        """Append all events to a stream, as the broker does; it is declared if missing. How many messages that were."""
        from warrenmq import client

        with client.connect(url) as connection:
            channel = connection.channel()
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_select()
            count = 0
            for start, body in enumerate(self.batches(rows)):
                times = self.columns["time"][start * rows : (start + 1) * rows]
                headers = {
                    schema.HEADER_VERSION: schema.VERSION,
                    schema.HEADER_ROWS: len(times),
                    schema.HEADER_FIRST: int(times[0]),
                    schema.HEADER_LAST: int(times[-1]),
                }
                properties = client.Properties(content_type=schema.CONTENT_TYPE, headers=headers)
                channel.publish("", stream, body, properties)
                count += 1
            channel.wait_for_confirms()
        return count


def make_history(
    messages: int = 1_000_000,
    *,
    start: datetime = START,
    seconds: float = 3600.0,
    faults: Faults = ALL_FAULTS,
    seed: int = 7,
) -> History:
    """`messages` within that time (those of faults come on top)."""
    return _Maker(messages, start, seconds, faults, np.random.default_rng(seed)).make()


class _Maker:
    """Draws the messages, then their steps, and puts the events into order. Lives as long as one history is made."""

    def __init__(
        self, count: int, start: datetime, seconds: float, faults: Faults, random: np.random.Generator
    ) -> None:
        self.count = count
        self.start = start
        self.seconds = seconds
        self.faults = faults
        self.random = random
        self.steps: list[dict[str, Any]] = []
        self.outstanding = 0

    def make(self) -> History:
        self._draw_messages()
        self._draw_steps()
        self._hang_consumer()
        self._add_steps()
        self._add_poison()
        self._add_unroutable()
        return self._finish()

    def _us(self, seconds: float) -> int:
        return round((self.start.timestamp() + seconds) * _US)

    def _draw_messages(self) -> None:
        """When each message is published, where it goes, its key, its id."""
        times = np.sort(self._us(0) + (self._draw_times() * _US).astype(np.int64))
        duplicates = self._choose_duplicates(times)
        self.source = np.concatenate([np.arange(self.count), duplicates])
        times = np.concatenate([times, times[duplicates] + 2 * _US])
        order = np.argsort(times, kind="stable")
        self.source, self.publish = self.source[order], times[order]
        self.duplicate_sources = duplicates
        total = len(self.publish)
        self.queue = self.random.choice(len(QUEUES), total, p=(0.4, 0.2, 0.3, 0.1))
        shares = 1 / np.arange(1, len(REGIONS) + 1)
        self.region = self.random.choice(len(REGIONS), total, p=shares / shares.sum())
        self.size = self.random.integers(100, 2000, total)

    def _draw_times(self) -> NDArray[np.float64]:
        """Seconds from the start, more of them where there is more traffic: a slow wave, and the spike."""
        grid = np.linspace(0, self.seconds, 20_001)
        rate = 1 + 0.1 * np.sin(grid / self.seconds * 2 * np.pi)
        if self.faults.spike_at is not None:
            spike = (grid >= self.faults.spike_at) & (grid < self.faults.spike_at + self.faults.spike_seconds)
            rate = np.where(spike, rate * self.faults.spike_factor, rate)
        total = np.cumsum(rate)
        drawn: NDArray[np.float64] = np.interp(self.random.random(self.count) * total[-1], total, grid)
        return drawn

    def _choose_duplicates(self, times: Numbers) -> Numbers:
        """Messages that come again two seconds later, within the same minute."""
        early = np.flatnonzero(times % (60 * _US) < 50 * _US)
        return np.sort(self.random.choice(early, min(self.faults.duplicates, len(early)), replace=False))

    def _draw_steps(self) -> None:
        """When each message is enqueued, delivered to whom, and acked."""
        total = len(self.publish)
        self.enqueue = self.publish + self.random.integers(5, 30, total)
        waiting = self.random.lognormal(np.log(2000), 0.5, total)
        if self.faults.slow_at is not None:
            begin = self._us(self.faults.slow_at)
            slow = (self.publish >= begin) & (self.publish < begin + round(self.faults.slow_seconds * _US))
            waiting = np.where(
                slow & (self.queue == QUEUES.index("billing")), waiting * self.faults.slow_factor, waiting
            )
        self.deliver = self.enqueue + waiting.astype(np.int64) + 1
        self.ack = self.deliver + self.random.lognormal(np.log(5000), 0.4, total).astype(np.int64) + 1
        self.consumer = self.random.integers(0, CONSUMERS, total)
        self.is_acked = np.ones(total, bool)

    def _hang_consumer(self) -> None:
        """From then on, consumer 1 of shipping settles nothing: it fills its prefetch, and others do its work."""
        if self.faults.stuck_at is None:
            return
        stuck_at = self._us(self.faults.stuck_at)
        mine = (self.queue == QUEUES.index("shipping")) & (self.consumer == 1)
        before = mine & (self.deliver < stuck_at)
        self.is_acked[before & (self.ack >= stuck_at)] = False
        after = np.flatnonzero(mine & (self.deliver >= stuck_at))
        after = after[np.argsort(self.deliver[after], kind="stable")]
        held, others = after[: self.faults.stuck_prefetch], after[self.faults.stuck_prefetch :]
        self.is_acked[held] = False
        self.consumer[others] = self.random.choice([0, 2, 3], len(others))
        self.outstanding = int((~self.is_acked).sum())

    def _add_steps(self) -> None:
        total = len(self.publish)
        self.uid = _uids_of(self.publish)
        message = {
            "uid": self.uid,
            "publish_time": self.publish,
            "routing_key": self._key_codes(),
            "size": self.size,
            "message": np.arange(total),
        }
        everywhere = message | {"queue": self.queue, "enqueue_time": self.enqueue}
        held = everywhere | {"consumer": self.queue * CONSUMERS + self.consumer, "attempt": np.ones(total, np.int64)}
        self._add(schema.PUBLISHED, self.publish, message)
        self._add(schema.ENQUEUED, self.enqueue, everywhere)
        self._add(schema.DELIVERED, self.deliver, held)
        self._add(schema.ACKED, self.ack, held, self.is_acked)

    def _key_codes(self) -> Numbers:
        return self.queue * len(REGIONS) + self.region

    def _add(self, kind: int, times: Numbers, columns: dict[str, Any], mask: Any = None) -> None:
        chosen = columns | {"time": times, "kind": np.full(len(times), kind)}
        self.steps.append(chosen if mask is None else {name: values[mask] for name, values in chosen.items()})

    def _add_poison(self) -> None:
        """Messages of one key come, are nacked and requeued again and again, and are dead-lettered at last."""
        if self.faults.poison_at is None:
            return
        messages, attempts = self.faults.poison_messages, self.faults.poison_attempts
        publish = self._us(self.faults.poison_at) + np.arange(messages) * 10_000
        one = self._stray("poison", publish)
        place = one | {"queue": np.zeros(messages, np.int64), "enqueue_time": publish + 10}
        self._add(schema.PUBLISHED, publish, one)
        self._add(schema.ENQUEUED, publish + 10, place)
        often = {name: np.repeat(values, attempts) for name, values in place.items()}
        attempt = np.tile(np.arange(1, attempts + 1), messages)
        often |= {"attempt": attempt, "consumer": attempt % CONSUMERS}
        delivered = often["publish_time"] + 2000 + (attempt - 1) * 50_000
        self._add(schema.DELIVERED, delivered, often)
        self._add(schema.NACKED, delivered + 3000, often)
        back = often | {"reason": np.full(len(attempt), schema.R_CLIENT)}
        self._add(schema.REQUEUED, delivered + 3001, back, attempt < attempts)
        last = often | {"reason": np.full(len(attempt), schema.R_DELIVERY_LIMIT)}
        del last["consumer"]  # it has settled the message
        self._add(schema.DEAD_LETTERED, delivered + 3001, last, attempt == attempts)

    def _add_unroutable(self) -> None:
        lost = self.faults.unroutable
        publish = np.sort(self._us(0) + (self.random.random(lost) * self.seconds * _US).astype(np.int64))
        one = self._stray("lost", publish)
        self._add(schema.PUBLISHED, publish, one)
        self._add(schema.UNROUTABLE, publish + 5, one | {"reason": np.full(lost, schema.R_NO_ROUTE)})

    def _stray(self, what: str, publish: Numbers) -> dict[str, Any]:
        """Messages beside the traffic: no message id, no correlation id, uids of another broker."""
        node = 1 if what == "poison" else 2
        key = len(QUEUES) * len(REGIONS) + node - 1
        count = len(publish)
        return {
            "uid": _uids_of(publish) | node,
            "publish_time": publish,
            "routing_key": np.full(count, key),
            "size": np.full(count, 100),
            "message": np.full(count, _MISSING),
        }

    def _finish(self) -> History:
        names = self._names()
        columns = self._gather()
        columns["depth"] = _depths(columns)
        first_key, first_queue = names.index(f"{QUEUES[0]}.{REGIONS[0]}"), names.index(QUEUES[0])
        first_consumer, first_connection = names.index(_consumer_name(0)), names.index(_connection_name(0))
        connection = np.where(columns["consumer"] == _MISSING, _MISSING, columns["consumer"])
        for name, first in (("routing_key", first_key), ("queue", first_queue), ("consumer", first_consumer)):
            columns[name] = np.where(columns[name] == _MISSING, _MISSING, columns[name] + first)
        columns["connection"] = np.where(connection == _MISSING, _MISSING, connection + first_connection)
        columns["channel"] = np.where(connection == _MISSING, _MISSING, 1)
        columns["vhost"] = np.full(len(connection), names.index(VHOST))
        columns["exchange"] = np.full(len(connection), names.index(EXCHANGE))
        message_ids = _id_texts("m-", np.append(self.source, 0))[:-1]
        sessions = _id_texts("basket-", np.append(self.source // 5, 0))[:-1]
        return History(columns, names, message_ids, sessions, self._truth(columns))

    def _names(self) -> tuple[str, ...]:
        keys = [f"{queue}.{region}" for queue in QUEUES for region in REGIONS]
        tags = range(len(QUEUES) * CONSUMERS)
        consumers, connections = map(_consumer_name, tags), map(_connection_name, tags)
        return (VHOST, EXCHANGE, *keys, POISON_KEY, LOST_KEY, *QUEUES, *consumers, *connections)

    def _gather(self) -> dict[str, Numbers]:
        """All steps in the order of time; those of one microsecond in the order of kinds."""
        wanted = (
            "time", "kind", "uid", "publish_time", "enqueue_time", "routing_key", "queue", "consumer", "size",
            "attempt", "reason", "message",
        )  # fmt: skip
        lengths = [len(step["time"]) for step in self.steps]
        missing = [np.full(length, _MISSING, np.int64) for length in lengths]
        found = {
            name: np.concatenate([step.get(name, gap) for step, gap in zip(self.steps, missing, strict=True)])
            for name in wanted
        }
        order = np.lexsort((found["kind"], found["time"]))
        return {name: values[order] for name, values in found.items()}

    def _truth(self, columns: dict[str, Numbers]) -> Truth:
        kinds, faults = columns["kind"], self.faults
        queues = columns["queue"][kinds == schema.ENQUEUED] - self._names().index(QUEUES[0])
        enqueued = np.bincount(queues, minlength=len(QUEUES))
        return Truth(
            published=int((kinds == schema.PUBLISHED).sum()),
            enqueued=int((kinds == schema.ENQUEUED).sum()),
            acked=int((kinds == schema.ACKED).sum()),
            by_queue={queue: int(enqueued[number]) for number, queue in enumerate(QUEUES)},
            spike_at=self._when(faults.spike_at),
            poison_at=self._when(faults.poison_at),
            poison_failures=int((kinds == schema.NACKED).sum()),
            stuck_consumer=None
            if faults.stuck_at is None
            else _consumer_name(QUEUES.index("shipping") * CONSUMERS + 1),
            stuck_queue="shipping",
            stuck_at=self._when(faults.stuck_at),
            outstanding=self.outstanding,
            slow_queue="billing",
            slow_at=self._when(faults.slow_at),
            duplicate_ids=frozenset(f"m-{number:08d}" for number in self.duplicate_sources.tolist()),
            unroutable=faults.unroutable,
        )

    def _when(self, seconds: float | None) -> datetime | None:
        return None if seconds is None else self.start + timedelta(seconds=seconds)


def _consumer_name(number: int) -> str:
    return f"{QUEUES[number // CONSUMERS]}-worker-{number % CONSUMERS}"


def _connection_name(number: int) -> str:
    return f"127.0.0.1:{50_000 + number} -> 127.0.0.1:5672"


def _uids_of(times: Numbers) -> Numbers:
    """Uids of messages that came at these times, which are in order."""
    milliseconds = times // 1000 - EPOCH_MS
    places = np.arange(len(times))
    is_first = np.append(True, milliseconds[1:] != milliseconds[:-1])[: len(times)]
    first = np.maximum.accumulate(np.where(is_first, places, 0))
    return milliseconds << 22 | (places - first) << 6


def _depths(columns: dict[str, Numbers]) -> Numbers:
    """How many wait in the queue after each event."""
    kinds, queues = columns["kind"], columns["queue"]
    change = np.isin(kinds, (schema.ENQUEUED, schema.REQUEUED)).astype(np.int64) - (kinds == schema.DELIVERED)
    depths = np.full(len(kinds), _MISSING, np.int64)
    for queue in range(len(QUEUES)):
        here = np.flatnonzero(queues == queue)
        depths[here] = np.cumsum(change[here])
    return depths


def _id_texts(prefix: str, numbers: Numbers) -> pa.StringArray:
    """`m-00000017`: all of one length, so that the bytes are one array of digits."""
    digits = (numbers[:, None] // 10 ** np.arange(7, -1, -1) % 10 + ord("0")).astype(np.uint8)
    head = np.tile(np.frombuffer(prefix.encode(), np.uint8), (len(numbers), 1))
    data = np.ascontiguousarray(np.concatenate([head, digits], axis=1))
    width = data.shape[1]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(data))


def _texts_of(history: History, column: str, rows: slice) -> pa.Array:
    """The message or correlation ids of these events; nulls for all other columns of text."""
    messages = history.columns["message"][rows]
    source = {"message_id": history.message_ids, "correlation_id": history.correlation_ids}.get(column)
    if source is None:
        return pa.nulls(len(messages), pa.string())
    return source.take(pa.array(messages, pa.int64(), mask=messages == _MISSING))


def _arrow_type(name: str) -> pa.DataType:
    types = {
        schema.TIME: pa.timestamp("us", "UTC"),
        schema.INT8: pa.int8(),
        schema.INT32: pa.int32(),
        schema.INT64: pa.int64(),
    }
    return types.get(name, pa.string())


# -- batches as the broker writes them (docs/formats/events.md) -------------------------------------------------------

_INDEX = np.int16 if "int16" in schema.NAME else np.int32
_NUMPY_TYPES: dict[str, Any] = {schema.INT8: np.int8, schema.INT32: np.int32, schema.NAME: _INDEX}


def _encode_names(names: tuple[str, ...]) -> bytes:
    texts = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32).tobytes()
    body, places = _laid_out([b"", ends, b"".join(texts)])
    return arrow.DICTIONARY.fill(len(names), [0], places, len(body)) + body


def _encode_batch(history: History, rows: slice, names: bytes) -> bytes:
    buffers: list[bytes] = []
    nulls: list[int] = []
    count = rows.stop - rows.start
    for column in schema.COLUMNS:
        missing = np.zeros(count, bool)
        if column.type == schema.TEXT:
            texts = _texts_of(history, column.name, rows)
            missing = texts.is_null().to_numpy(zero_copy_only=False)
            data = texts.buffers()[2]
            parts = [texts.buffers()[1].to_pybytes()[: 4 * (count + 1)], data.to_pybytes() if data else b""]
        else:
            held = history.columns.get(column.name)
            values = np.full(count, _MISSING) if held is None else held[rows]
            if column.is_nullable:
                missing = values == _MISSING
            parts = [np.where(missing, 0, values).astype(_NUMPY_TYPES.get(column.type, np.int64)).tobytes()]
        flags = np.packbits(~missing, bitorder="little").tobytes() if column.is_nullable else b""
        buffers += [flags, *parts]
        nulls.append(int(missing.sum()))
    body, places = _laid_out(buffers)
    message = arrow.BATCHES[schema.VERSION].fill(count, nulls, places, len(body))
    return arrow.schema_message() + names + message + body + arrow.END_OF_STREAM


def _laid_out(buffers: list[bytes]) -> tuple[bytes, list[int]]:
    """Buffers behind one another, padded; place and size of each."""
    places: list[int] = []
    parts: list[bytes] = []
    at = 0
    for data in buffers:
        places += [at, len(data)]
        parts.append(data.ljust(arrow.padded(len(data)), b"\0"))
        at += arrow.padded(len(data))
    return b"".join(parts), places
