"""Settings of the storage."""

from dataclasses import dataclass, field

from warrenmq.core.durability import Durability

MIB = 1024 * 1024
LOG_FILE_SIZE = 32 * MIB
MEMORY_BUDGET = 96 * MIB


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """When the log exceeds `log_limit`, its content is flushed to the queues' own files.

    `window`, `page` and `memory_budget` limit how much of a long queue stays in memory (core/ports.py, PageSizes). The
    other defaults were measured; tests make everything small.
    """

    durability: Durability = field(default_factory=Durability)
    log_limit: int = 128 * MIB
    log_file_size: int = LOG_FILE_SIZE
    window: int = 32 * MIB
    page: int = 768 * 1024
    memory_budget: int = MEMORY_BUDGET
    segment_size: int = 8 * MIB  # a queue's segment is closed at this size
    page_size: int = 256 * 1024  # of pages in segments
    read_size: int = 1 * MIB  # bytes per read: about 7,000 messages of 100 B
    dead_allowance: int = 6 * MIB  # compaction starts when a queue's files have this much more dead than live data
    relog_below: int = 32 * 1024  # a queue with less than this and no segments is relogged instead of flushed
