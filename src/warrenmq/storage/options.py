"""What can be set about the storage."""

from dataclasses import dataclass, field

from warrenmq.core.durability import Durability

MIB = 1024 * 1024
LOG_FILE_SIZE = 32 * MIB
MEMORY_BUDGET = 96 * MIB


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """`log_limit`: so long may the log grow before what it holds is flushed to the queues' own files.

    `window`, `page` and `memory_budget` say how much of a long queue stays in memory (core/ports.py, PageSizes). The
    rest is as it was measured to be good; tests make everything small.
    """

    durability: Durability = field(default_factory=Durability)
    log_limit: int = 128 * MIB
    log_file_size: int = LOG_FILE_SIZE
    window: int = 32 * MIB
    page: int = 768 * 1024
    memory_budget: int = MEMORY_BUDGET
    segment_size: int = 8 * MIB  # a queue's segment is closed when it has so many bytes
    page_size: int = 256 * 1024  # of the pages in it
    read_size: int = 1 * MIB  # read at once: with 100 B messages some 7,000 of them
    dead_allowance: int = 6 * MIB  # a queue's files are compacted when they have this much more dead than alive
    relog_below: int = 32 * 1024  # a queue without segments that holds less is said again instead of being flushed
