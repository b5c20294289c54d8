cimport cython

from warrenmq.core.consumer cimport Consumer
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport EventSink
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn


cdef int _DELIVERED
cdef int _AUTO_ACK


cdef class Queue:
    cdef readonly str vhost
    cdef readonly str name
    cdef readonly bint is_durable
    cdef readonly bint is_auto_delete
    cdef readonly object owner
    cdef readonly dict arguments
    cdef readonly object options
    cdef readonly dict consumers
    cdef readonly bint is_deleted
    cdef public long long requeued
    cdef public long long rejected
    cdef public long long delivered_no_ack
    cdef public long long redelivered
    cdef readonly int durability_level
    cdef readonly long long delivered
    cdef readonly Py_ssize_t unacked_count
    # Fields that every message reads are last, next to those of subclasses.
    cdef readonly bint is_due
    cdef public bint is_tapped
    cdef readonly EventSink events
    cdef readonly Stats stats
    cdef readonly Turn turn
    cdef public object deduplication
    cdef public object expiry

    cpdef int enqueue(self, Message message) except -1
    cpdef dispatch(self)
    cpdef QueuedMessage get(self)
    cpdef discard(self, QueuedMessage entry)
    cpdef settle_sent(self, QueuedMessage entry)
    cpdef settle(self, QueuedMessage entry)
    cpdef reject(self, QueuedMessage entry, object actor)
    cpdef requeue(self, list entries, object actor=*, int reason=*)
    cpdef Message as_delivered(self, QueuedMessage entry)
    cpdef bint needs_page(self)
    cpdef count_unacked(self)
    cpdef emit_delivered(self, QueuedMessage entry, object actor, bint is_settled)
    cpdef wake(self, Consumer consumer)
    cpdef make_due(self)
    @cython.locals(consumer=Consumer)
    cpdef release(self, QueuedMessage entry)
