"""Ids of messages: given by the broker, written as text, hashed, and found in a traceparent header."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warrenmq.events.ids import (
    EPOCH_MS,
    MAX_UID,
    MESSAGE_ID_KEY,
    UidClock,
    key_hash,
    parse_traceparent,
    parse_uid,
    uid_key,
    uid_text,
)

NOW_US = (EPOCH_MS + 1_000_000_000) * 1000
TRACE_ID, SPAN_ID = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
uids = st.integers(0, MAX_UID)


def time_ms_of(uid: int) -> int:
    return (uid >> 22) + EPOCH_MS


@given(st.lists(st.integers(0, 1 << 55), min_size=1), st.integers(0, 63))
@settings(deadline=None)
def test_uids_grow_even_if_the_clock_is_set_back(clock: list[int], node: int) -> None:
    source = UidClock(node=node)
    given = [source.next(now) for now in clock]
    assert given == sorted(set(given))
    assert given[-1] == source.last <= MAX_UID
    assert all(uid & 63 == node for uid in given)


def test_uid_contains_its_time() -> None:
    assert time_ms_of(UidClock().next(NOW_US)) == NOW_US // 1000


def test_uids_grow_across_a_restart_with_the_clock_set_back() -> None:
    last = UidClock(node=63).next(NOW_US)
    assert UidClock(last).next(NOW_US - 3600_000_000) > last


def test_two_brokers_never_assign_the_same_uid() -> None:
    one, other = UidClock(node=1), UidClock(node=2)
    assert not {one.next(NOW_US) for _ in range(1000)} & {other.next(NOW_US) for _ in range(1000)}


def test_more_uids_in_a_millisecond_than_its_counter_holds() -> None:
    source = UidClock()
    for _ in range(70_000):
        source.next(NOW_US)
    assert time_ms_of(source.last) == NOW_US // 1000 + 1


def test_number_of_a_broker_has_six_bits() -> None:
    with pytest.raises(ValueError, match="from 0 to 63"):
        UidClock(node=64)


@given(uids, uids)
@example(0, MAX_UID)
@settings(deadline=None)
def test_uid_texts_sort_as_their_numbers(one: int, other: int) -> None:
    assert (uid_text(one) < uid_text(other)) == (one < other)


@given(uids)
@example(MAX_UID)
@settings(deadline=None)
def test_uid_text_is_parsed_in_either_case(uid: int) -> None:
    text = uid_text(uid)
    assert len(text) == 13
    assert parse_uid(text) == uid
    assert parse_uid(text.lower()) == uid


@pytest.mark.parametrize(
    "text", ["", "0", "0000000000000x", "000000000000I", "ZZZZZZZZZZZZZ", "00000000000é0", "-000000000000"]
)
def test_other_texts_are_not_uids(text: str) -> None:
    assert parse_uid(text) is None


def test_hashes_are_stable() -> None:
    # The index on disk holds them: docs/formats/events.md.
    assert key_hash(MESSAGE_ID_KEY, b"order-17") == 0xE26D64C2D979A7D5
    assert uid_key(910033394543362048) == 910033394543362048 >> 12


def test_messages_of_one_millisecond_share_a_key() -> None:
    clock = UidClock(node=5)
    now = 1_800_000_000_000_000
    uids = [clock.next(now) for _ in range(130)]
    assert [uid_key(uid) - uid_key(uids[0]) for uid in uids] == [0] * 64 + [1] * 64 + [2] * 2
    assert uid_key(clock.next(now + 1000)) > uid_key(uids[-1])


def test_equal_ids_of_different_kinds_have_different_hashes() -> None:
    assert len({key_hash(space, b"order-17") for space in range(5)}) == 5


@given(st.lists(st.binary(max_size=20), unique=True, min_size=2))
@settings(deadline=None)
def test_hashes_of_different_ids_differ(ids: list[bytes]) -> None:
    assert len({key_hash(MESSAGE_ID_KEY, data) for data in ids}) == len(ids)


def test_low_bits_of_hashes_of_similar_ids_are_spread() -> None:
    # Sampling takes a share of all messages by their hash.
    kept = sum(key_hash(MESSAGE_ID_KEY, b"order-%d" % number) % 100 == 0 for number in range(20_000))
    assert 100 < kept < 300


def test_traceparent_has_trace_and_span() -> None:
    assert parse_traceparent(b"00-" + TRACE_ID + b"-" + SPAN_ID + b"-01") == (TRACE_ID, SPAN_ID)


def test_traceparent_of_a_later_version_may_be_longer() -> None:
    assert parse_traceparent(b"01-" + TRACE_ID + b"-" + SPAN_ID + b"-01-more") == (TRACE_ID, SPAN_ID)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"00-" + TRACE_ID + b"-" + SPAN_ID,
        b"00-" + TRACE_ID + b"-" + SPAN_ID + b"-01-more",
        b"ff-" + TRACE_ID + b"-" + SPAN_ID + b"-01",
        b"00-" + TRACE_ID.upper() + b"-" + SPAN_ID + b"-01",
        b"00-" + b"0" * 32 + b"-" + SPAN_ID + b"-01",
        b"00-" + TRACE_ID + b"-" + b"0" * 16 + b"-01",
        b"00-" + TRACE_ID[:-1] + b"\xff-" + SPAN_ID + b"-01",
    ],
)
def test_invalid_traceparent_is_none(data: bytes) -> None:
    assert parse_traceparent(data) is None
