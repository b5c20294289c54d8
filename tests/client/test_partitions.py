"""The names of a topic's objects, and the assignment of partitions to members."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from warrenmq.client import Misuse
from warrenmq.client.partitions import GroupNames, assign

members = some.sets(some.text(max_size=8), min_size=1, max_size=12)
partitions = some.integers(1, 64)


@given(partitions, members)
def test_each_partition_has_one_owner_and_shares_differ_by_at_most_one(partitions: int, members: set[str]) -> None:
    owners = assign(partitions, members)
    assert sorted(owners) == list(range(partitions))
    shares = Counter(dict.fromkeys(members, 0))
    shares.update(owners.values())
    assert shares.keys() == members
    assert max(shares.values()) - min(shares.values()) <= 1


@given(partitions, members, some.randoms())
def test_order_of_the_members_does_not_matter(partitions: int, members: set[str], random: object) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign(partitions, shuffled) == assign(partitions, members)


def test_most_partitions_stay_when_a_member_joins() -> None:
    stayed = total = 0
    for number in range(50):
        before = [f"{number}.{each}" for each in range(4)]
        old, new = assign(16, before), assign(16, [*before, f"{number}.new"])
        stayed += sum(old[each] == new[each] for each in old)
        total += 16
    assert stayed / total > 0.65  # 0.8 is the most that an even assignment can keep


@pytest.mark.parametrize(("topic", "group"), [("", "a"), ("a", ""), ("a", "b.c"), ("a" * 200, "b")])
def test_names_that_do_not_fit_are_refused(topic: str, group: str) -> None:
    with pytest.raises(Misuse, match="without a dot"):
        GroupNames(topic, group)
