cimport cython

from posix.time cimport timespec

from warrenmq.core.channel cimport Channel
from warrenmq.core.consumer cimport Consumer
from warrenmq.core.exchange cimport Route
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport CommitLog, EventSink, RouteSampler
from warrenmq.core.queue cimport Queue
from warrenmq.core.stream cimport Stream
from warrenmq.events.ids cimport UidClock
from warrenmq.events.rows cimport Rows
from warrenmq.tracing.trace_ids cimport is_republished, priority_of, sampling_hash, message_ids_of

cdef Py_ssize_t _BATCH_ROWS
cdef long long _BURST_US
cdef int _EVENTS_PER_READING
cdef int _REPUBLISHED
cdef int _ROUTED
cdef int _ENQUEUED
cdef int _DELIVERED
cdef int _AUTO_ACK
cdef int _MAX_SHORT_ATTEMPTS
cdef int _MESSAGE_ID_KEY
cdef unsigned long long _ALL_BITS
cdef double _RANDOM_RANGE
cdef long long _MAX_SKIP


cdef class Recorder(EventSink)


cdef class Plan(RouteSampler):
    cdef readonly Recorder recorder
    cdef readonly long long version
    cdef readonly long long skip
    cdef readonly unsigned long long threshold
    cdef readonly double step
    cdef readonly list header_rules

    cdef bint skips(self, bytes header) except -1


cdef class Recorder(EventSink):
    cdef readonly Rows rows
    cdef readonly long long last_batched
    cdef readonly long long version
    cdef readonly CommitLog commit_log
    cdef UidClock _uids
    cdef bint _is_tapping
    cdef long long _durable_work
    cdef long long _logged
    cdef long long _now
    cdef long long _read_at
    cdef int _readings_left
    cdef long long _row_uid
    cdef bytes _message_ids
    cdef int _priority
    cdef object _rules
    cdef object _firehose
    cdef object _log

    @cython.locals(publisher=Channel, cached_route=Route, plan=Plan)
    cpdef published(self, object channel, object route, Message message, list queues)
    @cython.locals(now="long long", uid="long long", is_new=bint, context=Py_ssize_t)
    cdef _put_published(self, Message message, Channel publisher, bint is_routed)
    @cython.locals(plan=Plan)
    cdef Plan _make_plan(self, Channel publisher, Route cached_route, list queues)
    @cython.locals(was_due=bint)
    cdef bint _is_sampled(self, Plan plan, Route cached_route, list queues, bytes header) except -1
    @cython.locals(threshold="unsigned long long")
    cdef bint _is_sampled_by_header(self, Plan plan, list rules, bytes header) except -1
    @cython.locals(skip=double)
    cdef long long _draw_skip(self, Plan plan) except -1
    @cython.locals(publisher=Channel)
    cpdef message_event(self, int kind, Message message, object channel, int reason)
    @cython.locals(target=Queue, context=Py_ssize_t)
    cpdef enqueued(self, Message message, object queue, long long depth)
    @cython.locals(now="long long")
    cpdef advance_clock(self)
    @cython.locals(target=Queue, message=Message, context=Py_ssize_t, depth="long long")
    cpdef queue_event(self, int kind, QueuedMessage entry, object queue, object who, int reason)
    cpdef detailed_event(
        self, int kind, QueuedMessage entry, object queue, object who, int reason, long long due_ms, long long retry_max,
        bytes note,
    )
    @cython.locals(target=Queue, rows=Rows, context=Py_ssize_t, now="long long")
    cpdef direct_delivery(self, Message message, object queue, object consumer)
    cdef _put(
        self, int kind, int reason, Py_ssize_t context, long long now, Message message, long long depth, int attempt
    )
    cdef bint _continues_row(self, long long now, Message message) except -1
    @cython.locals(rows=Rows, context=Py_ssize_t)
    cdef Py_ssize_t _publisher_context(self, bytes address, Channel publisher) except -1
    @cython.locals(context=Py_ssize_t, before=Py_ssize_t)
    cdef Py_ssize_t _queue_context(self, bytes address, Queue target, object holder, object who) except -1
    @cython.locals(consumer=Consumer, channel=Channel, tag=str, connection=str, number=int)
    cdef Py_ssize_t _make_queue_context(self, bytes address, Queue target, object holder, object who) except -1
    @cython.locals(now="long long")
    cdef long long _read_clock(self) except? -1
    cpdef firehose_delivery(self, QueuedMessage entry, object queue, object who)
    cpdef resource_event(self, int kind, str vhost, dict fields)
    cpdef end_turn(self)
    cpdef end_epoch(self)
    cpdef hand_over(self)


cdef bint has_ids(bytes header) except -1
@cython.locals(high="unsigned long long")
cpdef unsigned long long threshold_of(double ratio) except? 1
cdef timespec _clock
cpdef long long now_us() except? -1
