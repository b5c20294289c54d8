"""The outcome of a publish, as one integer.

The low two bits (`WAITS_FOR`) are what its confirm waits for: NOTHING, WRITTEN or SYNCED of core/ports.py. The bits
above say what became of the message in the queues it was routed to; none of them is set if there was no queue.
"""

from warrenmq.core.ports import NOTHING

WAITS_FOR = 0b11

UNROUTED = NOTHING
QUEUED = 1 << 2  # it waits in a queue
DELIVERED = 1 << 3  # it was sent to a consumer
DROPPED = 1 << 4  # a duplicate, or no consumer could take it; the publish is confirmed
REJECTED = 1 << 5  # a queue refused it; the publish is nacked


def combine(outcome: int, other: int) -> int:
    """Return the outcome of a message that had both: all that became of it, and the longer wait."""
    return (outcome | other) & ~WAITS_FOR | max(outcome & WAITS_FOR, other & WAITS_FOR)
