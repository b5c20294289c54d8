from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.turn cimport Turn


cdef class Outbox:
    cdef public bint is_congested
    cdef public dict parked

    cpdef deliver(self, int channel, bytes consumer_tag, unsigned long long delivery_tag, bint redelivered, Message message)
    cpdef get_ok(self, int channel, unsigned long long delivery_tag, bint redelivered, Message message, Py_ssize_t remaining)
    cpdef return_message(self, int channel, int reply_code, str reply_text, Message message)
    cpdef confirm(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef nack(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef cancel_consumer(self, int channel, str consumer_tag)


cdef class PageSizes:
    cdef readonly Py_ssize_t window
    cdef readonly Py_ssize_t resident
    cdef readonly Py_ssize_t read_below
    cdef readonly Py_ssize_t page
    cdef readonly Py_ssize_t budget
    cdef readonly Py_ssize_t small_window


cdef class MessageStore:
    cdef public PageSizes sizes
    cdef public bint is_reading
    cdef public int durability_level
    cdef public long long last_position
    cdef public long long last_read

    cpdef append(self, QueuedMessage entry)
    cpdef forget(self, QueuedMessage entry)
    cpdef save_attempts(self, QueuedMessage entry)
    cpdef page_out(self, list entries)
    cpdef page_in(self)


cdef class RouteSampler:
    cdef bint skips(self, bytes header) except -1


cdef class EventSink:
    cdef public bint is_watching
    cdef public bint has_events
    cdef public long long routed_uid

    cpdef published(self, object channel, object route, Message message, list queues)
    cpdef message_event(self, int kind, Message message, object channel, int reason)
    cpdef enqueued(self, Message message, object queue, long long depth)
    cpdef advance_clock(self)
    cpdef queue_event(self, int kind, QueuedMessage entry, object queue, object actor, int reason)
    cpdef direct_delivery(self, Message message, object queue, object consumer)
    cpdef detailed_event(
        self, int kind, QueuedMessage entry, object queue, object actor, int reason, long long due_ms, long long retry_max,
        bytes note,
    )
    cpdef firehose_delivery(self, QueuedMessage entry, object queue, object actor)
    cpdef resource_event(self, int kind, str vhost, dict fields)
    cpdef end_turn(self)


cdef class CommitLog:
    cdef public Turn turn
    cdef public long long work
    cdef public long long written
    cdef public long long durable
    cdef public object on_written
    cdef public object on_durable
    cdef public bint is_committing
    cdef public int reply_level
    cdef public object on_epoch_end
    cdef public object on_trim

    cpdef long long end_turn(self) except? -2


cdef class StreamStore:
    cdef readonly object offsets
    cdef public int durability_level
    cdef public long long first_position

    cpdef append(self, QueuedMessage entry)
