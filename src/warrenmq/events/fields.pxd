# The C form of fields.py: column numbers as constants, in the order of the fields of Event.
cdef enum:
    TIME, KIND, UID, MESSAGE_ID, PUBLISH_TIME, ENQUEUE_TIME, VHOST, EXCHANGE, ROUTING_KEY, QUEUE, CONSUMER, CONNECTION,
    CHANNEL, SIZE, ATTEMPT, REASON, CORRELATION_ID, TRACE_ID, SPAN_ID, SOURCE_UID, DEPTH, PRIORITY, NOTE,
    DUE_TIME, RETRY_MAX,
    NUMBER_OF_COLUMNS

ctypedef Py_ssize_t Offsets[NUMBER_OF_COLUMNS]  # one for each column
