"""The made-up history: the same for the same seed, as the broker writes it, and true to what it says of itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.support.history import NO_FAULTS, POISON_KEY, make_history
from warrenmq import Broker, client
from warrenmq.events import schema
from warrenmq.events.codec import decode


@pytest.fixture(scope="module")
def history():
    return make_history(5000)


def test_the_same_seed_makes_the_same_history(history):
    again, other = make_history(5000), make_history(5000, seed=8)
    assert again.table().equals(history.table())
    assert not other.table().equals(history.table())


def test_batches_are_what_the_broker_writes(history):
    """The decoder takes nothing but the bytes of this schema."""
    rows = history.table().to_pylist()
    decoded = [event for body in history.batches() for event in decode(body).events()]
    assert len(decoded) == len(rows) == history.rows
    for event, row in list(zip(decoded, rows, strict=True))[::97]:
        assert (event.queue, event.consumer, event.message_id, event.uid) == (
            row["queue"], row["consumer"], row["message_id"], row["uid"],
        )  # fmt: skip
        assert (event.kind, event.depth, event.attempt, event.reason) == (
            row["kind"], row["depth"], row["attempt"], row["reason"],
        )  # fmt: skip
        assert event.time == row["time"].timestamp() * 1_000_000


def test_any_reader_of_arrow_can_read_a_batch(history):
    table = pa.ipc.open_stream(next(history.batches(1000))).read_all()
    table.validate(full=True)
    assert table.num_rows == 1000
    assert table.column_names == [column.name for column in schema.COLUMNS]


def test_events_are_in_order_and_depths_add_up(history):
    assert (np.diff(history.columns["time"]) >= 0).all()
    table = history.table()
    depths = [depth for depth in table["depth"].to_pylist() if depth is not None]
    assert min(depths) >= 0
    last = {row["queue"]: row["depth"] for row in table.to_pylist() if row["queue"]}
    assert set(last.values()) == {0}, "everything was delivered in the end"


def test_every_message_has_a_uid_of_its_own_however_fast_they_come():
    table = make_history(5000, seconds=0.1).table()
    published = [row["uid"] for row in table.to_pylist() if row["kind"] == schema.PUBLISHED]
    assert len(set(published)) == len(published)


def test_the_truth_is_what_the_events_say(history):
    rows = history.table().to_pylist()
    kinds = [row["kind"] for row in rows]
    truth = history.truth
    assert kinds.count(schema.PUBLISHED) == truth.published == 5000 + 50 + 5 + 200
    assert kinds.count(schema.UNROUTABLE) == truth.unroutable
    nacked = [row for row in rows if row["kind"] == schema.NACKED]
    assert len(nacked) == truth.poison_failures == 2000
    assert {row["routing_key"] for row in nacked} == {POISON_KEY}
    mine = [row for row in rows if row["consumer"] == truth.stuck_consumer]
    assert max(row["time"] for row in mine if row["kind"] == schema.ACKED) < truth.stuck_at
    held = len([row for row in mine if row["kind"] == schema.DELIVERED]) - len(
        [row for row in mine if row["kind"] == schema.ACKED]
    )
    assert held == truth.outstanding == 20
    ids = [row["message_id"] for row in rows if row["kind"] == schema.PUBLISHED and row["message_id"]]
    assert {name for name in truth.duplicate_ids if ids.count(name) == 2} == truth.duplicate_ids
    assert len(ids) - len(set(ids)) == len(truth.duplicate_ids)


def test_a_quiet_history_has_no_faults():
    quiet = make_history(2000, faults=NO_FAULTS)
    assert set(quiet.columns["kind"].tolist()) == {
        schema.PUBLISHED, schema.ENQUEUED, schema.DELIVERED, schema.ACKED,
    }  # fmt: skip
    assert quiet.rows == 8000


def test_it_can_be_put_into_a_brokers_event_log(history):
    with Broker() as broker:
        count = history.publish(broker.url)
        with client.connect(broker.url) as connection:
            channel = connection.channel()
            channel.qos(prefetch_count=100)
            rows = 0
            arguments = {"x-stream-offset": "first"}
            for read, delivery in enumerate(channel.consume(schema.STREAM_NAME, arguments=arguments, timeout=10), 1):
                delivery.ack()
                assert delivery.headers[schema.HEADER_ROWS] == decode(delivery.body).count
                rows += decode(delivery.body).count
                if read == count:
                    break
    assert rows == history.rows
