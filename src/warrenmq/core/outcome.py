"""The outcome of a publish, as one integer.

The low two bits (`WAITS_FOR`) are the durability level that its confirm waits for: NOTHING, WRITTEN or SYNCED
(core/ports.py). The bits above are the outcomes in the queues that it was routed to; none is set if it was unroutable.
`|` combines the outcomes in several queues.
"""

from warrenmq.core.ports import NOTHING

WAITS_FOR = 0b11

UNROUTED = NOTHING
QUEUED = 1 << 2  # waits in a queue
DELIVERED = 1 << 3  # sent to a consumer
DROPPED = 1 << 4  # a duplicate, or no consumer could take it; the publish is confirmed
REJECTED = 1 << 5  # a queue refused it; the publish is nacked
