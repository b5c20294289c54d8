cimport cython

from posix.time cimport timespec

from warrenmq.core.channel cimport Channel
from warrenmq.core.consumer cimport Consumer
from warrenmq.core.exchange cimport Route
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport CommitLog, EventSink
from warrenmq.core.queue cimport Queue
from warrenmq.core.stream cimport Stream
from warrenmq.core.trace cimport is_republished, mark_of, publish_time_of, sampling_hash, texts_of, uid_of
from warrenmq.events.ids cimport UidClock
from warrenmq.events.rows cimport Rows

cdef Py_ssize_t _BATCH_ROWS
cdef long long _BURST_US
cdef int _EVENTS_PER_READING
cdef int _PUBLISHED
cdef int _REPUBLISHED
cdef int _ROUTED
cdef int _ENQUEUED
cdef int _IDS
cdef int _MESSAGE_ID_KEY
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
    cdef long long _read_at
    cdef int _readings_left
    cdef bytes _known_address
    cdef object _known_one
    cdef object _known_other
    cdef Py_ssize_t _known_scene
    cdef bytes _mark
    cdef bytes _texts
    cdef bytes _routed
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
    @cython.locals(chance="unsigned long long")
    cdef bint _is_drawn(self, bytes header, unsigned long long threshold) except -1
    @cython.locals(publisher=Channel)
    cpdef message_event(self, int kind, Message message, object channel, int reason)
    @cython.locals(rows=Rows, address=bytes, scene=Py_ssize_t)
    cdef _add(self, int kind, long long now, Message message, Channel publisher, int reason, bint is_routed)
    @cython.locals(mark=bytes)
    cdef _put(
        self,
        int kind,
        int reason,
        bint is_routed,
        Py_ssize_t scene,
        long long now,
        Message message,
        long long depth,
        int attempt,
    )
    @cython.locals(place=Queue, now="long long", rows=Rows, address=bytes, scene=Py_ssize_t)
    cpdef enqueued(self, Message message, object queue, long long depth)
    cdef bint _is_at(self, long long now, Message message) except -1
    @cython.locals(
        place=Queue, message=Message, address=bytes, known=object, scene=Py_ssize_t, depth="long long"
    )
    cpdef place_event(self, int kind, QueuedMessage entry, object queue, object who, int reason)
    @cython.locals(tag=str, connection=str, number=int, receiver=object, consumer=Consumer, channel=Channel)
    cdef Py_ssize_t _scene_of_place(self, bytes address, QueuedMessage entry, Queue place, object who) except -1
    @cython.locals(scene=Py_ssize_t)
    cdef Py_ssize_t _find_scene(self, bytes address, object one, object other) except -2
    cdef _forget_scene(self)
    @cython.locals(now="long long")
    cdef long long _read_clock(self) except? -1
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
