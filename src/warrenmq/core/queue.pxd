cimport cython

from warrenmq.core.consumer cimport Consumer, ConsumerRing
from warrenmq.core.line cimport Line
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.ports cimport MessageStore
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn


cdef class Queue:
    cdef readonly str vhost
    cdef readonly str name
    cdef readonly bint is_durable
    cdef readonly bint is_auto_delete
    cdef readonly object owner
    cdef readonly dict arguments
    cdef readonly Stats stats
    cdef readonly Turn turn
    cdef readonly MessageStore store
    cdef readonly object events
    cdef readonly Line ready
    cdef readonly ConsumerRing ring
    cdef readonly dict consumers
    cdef readonly Consumer exclusive_consumer
    cdef readonly bint is_deleted
    cdef readonly bint is_due
    cdef readonly Py_ssize_t unacked_count
    cdef readonly long long next_position

    @cython.locals(consumer=Consumer, position="long long")
    cpdef enqueue(self, Message message)
    cdef _enqueue_persistent(self, QueuedMessage entry)
    @cython.locals(consumer=Consumer, entry=QueuedMessage, ready=Line)
    cpdef dispatch(self)
    @cython.locals(entry=QueuedMessage)
    cpdef QueuedMessage get(self)
    cdef _hand_over(self, QueuedMessage entry, Consumer consumer)
    cpdef note_unacked(self)
    cpdef discard(self, QueuedMessage entry)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries)
    @cython.locals(consumer=Consumer)
    cdef _release(self, QueuedMessage entry)
    cpdef wake(self, Consumer consumer)
    cpdef make_due(self)
