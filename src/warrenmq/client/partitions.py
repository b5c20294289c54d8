"""The names of a topic's exchanges and queues, and which member of a consumer group gets which partition.

    orders, orders.least-loaded                      where publishers send: with a key, without
    orders.billing, orders.billing.least-loaded      the group's exchanges, which choose the partition
    orders.billing.0, orders.billing.1, ...          the group's partitions
    orders.billing.members                           a queue to count the members, and an exchange to notify them all

Pure. Every member computes the same assignment from the same set of members.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from warrenmq.client.errors import Misuse

MAX_NAME_BYTES = 200  # of the 255 bytes of an AMQP name; the rest is for suffixes


@dataclass(frozen=True, slots=True)
class GroupNames:
    """What belongs to one consumer group of a topic."""

    topic: str
    group: str

    def __post_init__(self) -> None:
        if not self.topic or not self.group or "." in self.group or len(self.exchange.encode()) > MAX_NAME_BYTES:
            raise Misuse(
                f"topic and group need names of together at most {MAX_NAME_BYTES} bytes, without a dot in that of the "
                f"group, not {self.topic!r:.80} and {self.group!r:.80}"
            )

    @property
    def exchange(self) -> str:
        return f"{self.topic}.{self.group}"

    @property
    def least_loaded(self) -> str:
        return least_loaded(self.exchange)

    @property
    def members(self) -> str:
        return f"{self.exchange}.members"

    def queue(self, partition: int) -> str:
        return f"{self.exchange}.{partition}"


def least_loaded(exchange: str) -> str:
    """Return the name of the exchange for messages without a key."""
    return f"{exchange}.least-loaded"


def assign(partitions: int, members: Iterable[str]) -> dict[int, str]:
    """Return the owner of each partition. The numbers of partitions per member differ by at most one.

    Rendezvous hashing with a limit: each partition goes to the member with the highest hash that has room, so a new
    member mostly takes partitions from others without moving any between them.
    """
    room = dict.fromkeys(sorted(members), 0)
    share, extra = divmod(partitions, len(room))
    owners: dict[int, str] = {}
    for partition in range(partitions):
        candidates = [each for each, count in room.items() if count < share + (extra > 0)]
        owner = max(candidates, key=lambda each: _weight(each, partition))
        extra -= room[owner] == share
        room[owner] += 1
        owners[partition] = owner
    return owners


def _weight(member: str, partition: int) -> bytes:
    return blake2b(f"{partition} {member}".encode(), digest_size=8).digest()
