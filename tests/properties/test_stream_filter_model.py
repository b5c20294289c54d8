"""Readers with filters against a plain list: whatever was published, each gets exactly its messages.

In memory and on disk, with any prefetch, acks in between, restarts, and readers that begin anywhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.storage.driver import Kept
from tests.support.client import Client, ClientChannel, make_broker
from tests.support.streams import StreamStorage, offset_of
from warrenmq.core.stream_filter import MAX_NEEDLES

STREAM = {"x-queue-type": "stream"}
VALUE = "x-stream-filter-value"

texts = st.sampled_from(["a", "b", "ab", "", "\u00fc", "a" * 300])
values = st.one_of(st.none(), texts, texts, st.sampled_from([7, True, ["a"], {VALUE: "a"}]))
others = st.dictionaries(st.sampled_from(["k", "x-stream-filter-valu", "CC-like", "z"]), st.integers(0, 9), max_size=2)
messages = st.lists(st.tuples(values, others, st.integers(0, 400)), max_size=60)
filters = st.one_of(
    texts, st.lists(texts, max_size=3), st.just([f"v{at}" for at in range(MAX_NEEDLES)] + ["a"]), st.just("nothing")
)
readers = st.lists(
    st.tuples(
        filters,
        st.sampled_from([None, False, True]),
        st.integers(0, 60),
        st.sampled_from([1, 2, 7, 1000]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


class Place:
    """A broker with one stream, in memory or on disk."""

    def __init__(self, channel: ClientChannel) -> None:
        self.channel = channel

    def settle(self) -> None:
        self.channel.client.broker.end_turn()


class DiskPlace(Place):
    def __init__(self, kept: Kept) -> None:
        super().__init__(kept.channel)
        self.kept = kept

    def settle(self) -> None:
        self.kept.settle()
        self.kept.settle()


@contextmanager
def opened(where: str) -> Iterator[Place]:
    if where == "memory":
        channel = Client(make_broker(StreamStorage())).channel()
        channel.declare("s", durable=True, arguments=STREAM)
        yield Place(channel)
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(Path(folder) / "data", page_size=500)
        kept.declare("s", **STREAM)
        yield DiskPlace(kept)
        kept.crash()


def publish(place: Place, published: list[tuple[Any, dict[str, Any], int]]) -> None:
    for value, other, size in published:
        headers = {**other, **({} if value is None else {VALUE: value})}
        place.channel.publish(bytes(size), "s", headers=headers or None, message_id=str(size % 3) if size % 2 else None)


def expected(published: list[Any], filter: Any, unfiltered: bool | None, begin: int) -> list[int]:
    wanted = filter if isinstance(filter, list) else [filter]
    found = []
    for offset, (value, _, _) in enumerate(published):
        if offset >= begin and (value in wanted if isinstance(value, str) else unfiltered):
            found.append(offset)
    return found


@pytest.mark.parametrize("where", ["memory", "disk", "disk, restarted"])
@settings(max_examples=60, deadline=None)
@example(  # a page is written behind those that are being read
    before=[(None, {}, 0)],
    meanwhile=[*[(None, {}, 0)] * 5, (None, {}, 179), ("a", {}, 0), *[(None, {}, 0)] * 9],
    asked=[("a", None, 0, 1, False)],
)
@given(before=messages, meanwhile=messages, asked=readers)
def test_each_reader_gets_exactly_its_messages(where: str, before: Any, meanwhile: Any, asked: Any) -> None:
    with opened(where.partition(",")[0]) as place:
        publish(place, before)
        place.settle()
        if where == "disk, restarted" and isinstance(place, DiskPlace):
            place.kept.restart()
            place.channel = place.kept.channel
        got: dict[str, list[int]] = {}
        channels: dict[str, ClientChannel] = {}
        for at, (filter, unfiltered, begin, prefetch, _) in enumerate(asked):
            tag = str(at)
            channel = channels[tag] = place.channel.client.channel()
            got[tag] = []
            arguments = {"x-stream-offset": begin, "x-stream-filter": filter}
            if unfiltered is not None:
                arguments["x-stream-match-unfiltered"] = unfiltered
            queue = channel.vhost.queues["s"]
            channel.consume(queue, tag, prefetch=prefetch, arguments=arguments)
        publish(place, meanwhile[: len(meanwhile) // 2])
        place.settle()
        publish(place, meanwhile[len(meanwhile) // 2 :])
        quiet = 0
        while quiet < 3:
            place.settle()
            quiet += 1
            for tag, channel in channels.items():
                prefetch, is_multiple = asked[int(tag)][3:]
                delivered = channel.deliveries()
                assert len(delivered) <= prefetch, "filtered messages take no credit"
                got[tag] += [offset_of(each) for each in delivered]
                for each in delivered[-1:] if is_multiple else delivered:
                    quiet = 0
                    channel.ack(each.tag, multiple=is_multiple)
        for at, (filter, unfiltered, begin, _, _) in enumerate(asked):
            assert got[str(at)] == expected(before + meanwhile, filter, unfiltered, begin), asked[at]
