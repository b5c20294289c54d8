"""What the stores of one node share.

Owned by the loop thread. Compiled when the package is built (store_context.pxd): stores read it for every message.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.core.ports import PageSizes
from warrenmq.storage.commit_log import LocalLog
from warrenmq.storage.manifest import Manifest
from warrenmq.storage.options import StorageOptions

if TYPE_CHECKING:
    from warrenmq.storage.checkpoint import Participant, Positioned
    from warrenmq.storage.pager import Pager
    from warrenmq.storage.queue_store import QueueStore


class StoreContext:
    """`unflushed` are the stores with messages that only the log has."""

    __slots__ = (
        "damaged_pages",
        "dead_allowance",
        "describe_queue",
        "idle_positions",
        "log",
        "lost_messages",
        "manifest",
        "marked_stores",
        "on_compactable",
        "page_size",
        "pager",
        "read_size",
        "restored_bytes",
        "root",
        "segment_size",
        "sizes",
        "stores",
        "unflushed",
    )

    def __init__(
        self, log: LocalLog, pager: "Pager", manifest: Manifest, options: StorageOptions, root: str = ""
    ) -> None:
        self.log = log
        self.pager = pager
        self.manifest = manifest
        self.root = root  # the data folder
        self.sizes = PageSizes(options.window, options.page, options.memory_budget)
        self.segment_size = options.segment_size
        self.page_size = options.page_size
        self.read_size = options.read_size
        self.dead_allowance = options.dead_allowance
        self.stores: dict[Positioned, None] = {}  # of all durable queues and tracked consumers
        self.idle_positions: dict[int, int] = {}  # the next ones of durable queues without a store, by number
        self.unflushed: dict[Participant, None] = {}
        self.marked_stores: dict[QueueStore, None] = {}  # with deletions that only the log has
        self.restored_bytes = 0  # restored by recovery and still in memory
        self.damaged_pages = 0  # met while reading
        self.lost_messages = 0  # in damaged pages
        self.describe_queue: Callable[[int], str] = _number_only  # by its number, for log lines
        self.on_compactable: Callable[[QueueStore], None] | None = None


def _number_only(number: int) -> str:
    return f"queue {number}"
