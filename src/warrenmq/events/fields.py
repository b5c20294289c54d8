"""Column numbers by name. Compiled modules cimport them as C constants from fields.pxd.

A new field of `Event` is appended here and there: importing fails if a name is missing here, `encode` and `decode` fail
if one is missing there, and tests/events/test_schema.py compares all names.
"""

from warrenmq.events.schema import COLUMNS

NUMBER_OF_COLUMNS = len(COLUMNS)
# fmt: off
(
    TIME, KIND, UID, MESSAGE_ID, PUBLISH_TIME, ENQUEUE_TIME, VHOST, EXCHANGE, ROUTING_KEY, QUEUE, CONSUMER, CONNECTION,
    CHANNEL, SIZE, ATTEMPT, REASON, CORRELATION_ID, TRACE_ID, SPAN_ID, SOURCE_UID, DEPTH, PRIORITY, NOTE,
    DUE_TIME, RETRY_MAX,
) = range(NUMBER_OF_COLUMNS)
# fmt: on
