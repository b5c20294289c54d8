"""Offsets of tracked consumers in the log: what a restart finds, what a checkpoint keeps, and what an ack costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept
from tests.support.client import ClientChannel
from tests.support.streams import offsets
from warrenmq.core.stream import Stream
from warrenmq.core.stream_offsets import MAX_TAGS
from warrenmq.journal.errors import BadRecord
from warrenmq.storage.check import check_folder
from warrenmq.storage.codec import OFFSET
from warrenmq.storage.replay import LogReplay

STREAM = {"x-queue-type": "stream"}
TRACKED = {"x-stream-automatic-offset-tracking": True}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path / "data")
    kept.declare("s", **STREAM)
    kept.publish(range(40), "s")
    kept.settle()
    return kept


def stored(kept: Kept) -> dict[str, int]:
    stream = kept.queue("s")
    assert isinstance(stream, Stream)
    return {} if stream.offsets is None else stream.offsets.stored


def consume(kept: Kept, tag: str = "t", **arguments: Any) -> ClientChannel:
    """A channel with a tracked consumer that has got all there is."""
    channel: ClientChannel = kept.channel.client.channel()
    channel.consume(kept.queue("s"), tag, prefetch=1000, arguments={**TRACKED, **arguments})
    for _ in range(3):
        kept.settle()
    return channel


def deal_with(kept: Kept, count: int, tag: str = "t", **arguments: Any) -> None:
    channel = consume(kept, tag, **arguments)
    channel.ack(count, multiple=True)
    kept.settle()
    channel.close()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_restart_remembers(kept: Kept, clean: bool) -> None:
    deal_with(kept, 7)
    deal_with(kept, 5)
    deal_with(kept, 3, "other \u00fc")
    for _ in range(3):
        kept.restart(clean)
        assert kept.storage.report == []
        assert stored(kept) == {"t": 12, "other \u00fc": 3}
    assert offsets(consume(kept))[0] == 12


def test_a_clean_stop_leaves_a_short_log(kept: Kept) -> None:
    deal_with(kept, 7)
    kept.restart()
    assert kept.storage.replayed_epochs == 1


@pytest.mark.parametrize("is_restarted", [True, False])
def test_offsets_outlive_the_log_that_they_were_first_in(kept: Kept, is_restarted: bool) -> None:
    deal_with(kept, 7)
    if is_restarted:
        kept.restart()
    for _ in range(3):
        kept.checkpoint()
        kept.publish(range(5), "s")
        kept.checkpoint()
    kept.restart(clean=False)
    assert stored(kept) == {"t": 7}


def test_an_ack_that_was_not_written_is_lost_with_the_process_and_nothing_else(kept: Kept) -> None:
    channel = consume(kept)
    channel.ack(4, multiple=True)
    kept.settle()
    channel.ack(9, multiple=True)
    kept.crash()
    kept.open()
    assert stored(kept) == {"t": 4}


def test_an_epoch_has_one_record_of_a_tag(kept: Kept) -> None:
    first, second = consume(kept, "first"), consume(kept, "second")
    buffer = kept.storage.log.buffer
    before = buffer.size
    for tag in range(1, 31):
        first.ack(tag)
        second.ack(tag)
    assert buffer.size - before == 14 + len("first") + 14 + len("second")
    kept.restart(clean=False)
    assert stored(kept) == {}
    first, second = consume(kept, "first"), consume(kept, "second")
    for tag in range(1, 31):
        first.ack(tag)
        if tag % 10 == 0:
            kept.settle()
    second.ack(5, multiple=True)
    kept.settle()
    kept.restart(clean=False)
    assert stored(kept) == {"first": 30, "second": 5}


def test_a_commit_keeps_its_publishes_and_acks_together(kept: Kept) -> None:
    channel = consume(kept)
    channel.core.select_transactions()
    kept.declare("out")
    for number in range(3):
        channel.publish(b"%d" % number, "out", delivery_mode=2)
    channel.ack(3, multiple=True)
    assert channel.core.commit() == kept.queue("s").durability_level
    epoch = kept.storage.log.epoch
    kept.turn()
    kept.storage.log.flush()
    assert kept.storage.log.epoch == epoch + 1, "it is in more than one epoch"
    kept.storage.run_all()
    kept.restart(clean=False)
    assert (len(kept.queue("out").backlog), stored(kept)) == (3, {"t": 3})


def test_a_commit_of_acks_alone_waits_for_the_log(kept: Kept) -> None:
    channel = consume(kept)
    channel.core.select_transactions()
    channel.ack(3, multiple=True)
    assert channel.core.commit() == kept.queue("s").durability_level


def test_a_deleted_stream_leaves_no_offsets(kept: Kept) -> None:
    deal_with(kept, 7)
    kept.channel.delete(kept.queue("s"))
    kept.settle()
    kept.declare("s", **STREAM)
    kept.publish(range(40), "s")
    kept.settle()
    kept.restart(clean=False)
    assert stored(kept) == {}
    kept.checkpoint()
    kept.restart()
    assert stored(kept) == {}


def test_tags_that_made_room_stay_forgotten(kept: Kept) -> None:
    for at in range(MAX_TAGS + 5):
        channel = kept.channel.client.channel()
        channel.consume(kept.queue("s"), f"tag {at}", prefetch=1, arguments=TRACKED)
        kept.settle()
        channel.ack(1)
        channel.close()
    kept.settle()
    expected = {f"tag {at}": 1 for at in range(5, MAX_TAGS + 5)}
    assert stored(kept) == expected
    for clean in (False, True):
        kept.restart(clean)
        assert list(stored(kept).items()) == list(expected.items())


def test_an_offset_that_retention_has_passed_is_forgotten_by_a_restart_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    kept.declare("s", **STREAM, **{"x-stream-max-segment-size-bytes": 1000, "x-max-length-bytes": 20_000})
    kept.publish(range(20), "s")
    kept.settle()
    deal_with(kept, 2, "early")
    deal_with(kept, 20, "late")
    while kept.queue("s").store.first_position < 10:
        kept.publish(range(20), "s")
        kept.settle()
    assert stored(kept) == {"late": 20}
    kept.restart(clean=False)
    assert stored(kept) == {"late": 20}


def test_an_offset_after_the_end_of_the_stream_is_not_believed(kept: Kept) -> None:
    kept.storage.log.buffer.put_offset(kept.queue("s").store.number, 1000, b"t")
    kept.storage.log.note_work(0)
    kept.settle()
    kept.restart(clean=False)
    assert stored(kept) == {"t": 40}


def test_a_check_knows_the_records(kept: Kept) -> None:
    deal_with(kept, 7)
    kept.crash()
    report = check_folder(str(kept.folder))
    assert report.damage == []


@pytest.mark.parametrize("cut", range(1, 17))
def test_a_record_that_is_cut_short_is_no_record(cut: int) -> None:
    record = bytes((OFFSET, 9, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3)) + b"tag"
    replay = LogReplay()
    assert replay.check(record) == []
    replay.scan(record, 1)
    assert replay.offsets == {9: {b"tag": 3}}
    with pytest.raises(BadRecord):
        LogReplay().check(record[:-cut])
