"""The numbers of the row format (docs/formats/events.md). Compiled modules cimport them as constants from records.pxd.

tests/events/test_schema.py compares the two forms.
"""

BLOCK = 64  # rows that are read at once: a word of validity bits

# Flags of a record.
HAS_IDS = 1  # the message's ids and source follow
SAME_IDS = 2  # they are those of the previous record
ROUTED_FOLLOWS = 4  # a second row: the same, but of the kind `routed`
IS_SHORT = 8  # message, time and size are those of the previous record; it was enqueued at that time
DELIVERED_FOLLOWS = 16  # a short record with a second row: `delivered`, in the context that follows
IS_PUBLISHED = 32  # a short form of `published`: it has no enqueue time, depth or attempt
HAS_DETAILS = 64  # due time, retry max and note follow

# Bytes of a record. Each begins with kind, reason, flags, a byte, context.
FULL_SIZE = 52  # byte: priority; time, uid, publish and enqueue time, size + 1, depth + 1, attempt; 0: null
PUBLISHED_SIZE = 28  # byte: priority; time, uid, size + 1
SHORT_SIZE = 12  # byte: attempt; depth + 1
DIRECT_SIZE = 16  # the same, and the context of the delivery
DETAILS_SIZE = 16  # due time, retry max, size of the note + 1, which follows; 0: null

MAX_INT = 0x7FFF_FFFF  # of int32 columns: larger numbers are cut to it
