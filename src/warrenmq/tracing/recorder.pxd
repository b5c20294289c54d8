cimport cython

from posix.time cimport timespec

from warrenmq.core.channel cimport Channel
from warrenmq.core.consumer cimport Consumer
from warrenmq.core.exchange cimport Route
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport CommitLog, EventSink
from warrenmq.core.queue cimport Queue
from warrenmq.core.stream cimport Stream
from warrenmq.core.trace cimport is_republished, mark_of, sampling_key, trace_of
from warrenmq.events.ids cimport UidClock, key_hash
from warrenmq.events.rows cimport Rows, Trace

cdef Py_ssize_t _BATCH_ROWS
cdef int _PUBLISHED
cdef int _REPUBLISHED
cdef int _ROUTED
cdef int _ENQUEUED
cdef int _IDS
cdef unsigned long long _MESSAGE_ID_KEY
cdef unsigned long long _ALL
cdef unsigned long long _MULTIPLIER


@cython.final
cdef class Plan:
    cdef readonly long long version
    cdef readonly unsigned long long threshold
    cdef readonly list header_rules


cdef class Recorder(EventSink):
    cdef readonly Rows rows
    cdef readonly long long numbered
    cdef readonly CommitLog commit_log
    cdef UidClock _uids
    cdef unsigned long long _chance
    cdef bint _is_tapping
    cdef long long _version
    cdef long long _work
    cdef long long _logged
    cdef long long _now
    cdef bytes _mark
    cdef Trace _trace
    cdef object _rules
    cdef object _firehose
    cdef object _log

    @cython.locals(
        publisher=Channel, way=Route, plan=Plan, threshold="unsigned long long", now="long long"
    )
    cpdef published(self, object channel, object route, Message message, list queues)
    @cython.locals(plan=Plan)
    cdef Plan _make_plan(self, Channel publisher, Route way, list queues)
    @cython.locals(threshold="unsigned long long")
    cdef unsigned long long _consider_headers(self, Plan plan, bytes header) except? 1
    @cython.locals(key=bytes, chance="unsigned long long")
    cdef bint _is_drawn(self, bytes header, unsigned long long threshold) except -1
    @cython.locals(publisher=Channel)
    cpdef message_event(self, int kind, Message message, object channel, int reason)
    cdef _add(self, int kind, long long now, Message message, Channel publisher, int reason)
    cdef Trace _trace_of(self, Message message)
    @cython.locals(place=Queue, now="long long")
    cpdef enqueued(self, Message message, object queue, long long depth)
    @cython.locals(
        place=Queue, tag=str, connection=str, number=int, receiver=object, consumer=Consumer, channel=Channel,
        message=Message,
    )
    cpdef place_event(self, int kind, QueuedMessage entry, object queue, object who, int reason)
    cpdef tapped(self, QueuedMessage entry, object queue, object who)
    cpdef resource_event(self, int kind, str vhost, dict fields)
    @cython.locals(rows=Rows)
    cpdef end_turn(self)
    cpdef end_epoch(self)
    cpdef hand_over(self)


@cython.locals(high="unsigned long long")
cpdef unsigned long long threshold_of(double ratio) except? 1
cdef timespec _clock
cpdef long long now_us() except? -1
