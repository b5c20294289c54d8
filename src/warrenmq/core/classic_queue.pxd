cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.consumer cimport Consumer, ConsumerRing
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.queue cimport Queue


cdef int NOTHING
cdef int QUEUED
cdef int DELIVERED
cdef int DROPPED
cdef int _REQUEUED
cdef int _DROPPED
cdef int _DUPLICATE


cdef class ClassicQueue(Queue):
    cdef readonly Backlog backlog
    cdef readonly ConsumerRing ring
    cdef readonly Consumer exclusive_consumer
    cdef readonly long long kept
    cdef readonly object delivery_limit
    cdef readonly object single_active

    @cython.locals(
        backlog=Backlog, consumer=Consumer, entry=QueuedMessage, position="long long", promise=int, is_first=bint
    )
    cpdef int enqueue(self, Message message) except -1
    cdef int _drop_duplicate(self, Message message) except -1
    cpdef bint needs_page(self)
    @cython.locals(backlog=Backlog, consumer=Consumer, entry=QueuedMessage)
    cpdef dispatch(self)
    @cython.locals(entry=QueuedMessage)
    cpdef QueuedMessage get(self)
    @cython.locals(message=Message)
    cdef _hand_over(self, QueuedMessage entry, Consumer consumer)
    cpdef discard(self, QueuedMessage entry)
    cpdef drop(self, QueuedMessage entry, int reason)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries, object who=*, int reason=*)
    cpdef wake(self, Consumer consumer)
    cpdef make_due(self)
    cpdef Message as_delivered(self, QueuedMessage entry)
