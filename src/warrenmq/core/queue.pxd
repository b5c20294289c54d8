cimport cython

from warrenmq.core.consumer cimport Consumer, ConsumerRing
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport MessageStore
from warrenmq.core.stats cimport Stats


cdef class Queue:
    cdef readonly str vhost
    cdef readonly str name
    cdef readonly bint is_durable
    cdef readonly bint is_auto_delete
    cdef readonly object owner
    cdef readonly dict arguments
    cdef readonly Stats stats
    cdef readonly MessageStore store
    cdef readonly object events
    cdef readonly object ready
    cdef readonly ConsumerRing ring
    cdef readonly dict consumers
    cdef readonly Consumer exclusive_consumer
    cdef readonly bint has_had_consumer
    cdef readonly bint is_deleted
    cdef readonly Py_ssize_t unacked_count
    cdef readonly long long next_position

    @cython.locals(consumer=Consumer, position="long long")
    cpdef enqueue(self, Message message)
    cdef _enqueue_persistent(self, QueuedMessage entry)
    @cython.locals(consumer=Consumer, entry=QueuedMessage)
    cpdef dispatch(self)
    cpdef QueuedMessage get(self)
    cdef _hand_over(self, QueuedMessage entry, Consumer consumer)
    cpdef note_unacked(self)
    cpdef discard(self, QueuedMessage entry)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries)
    @cython.locals(entry=QueuedMessage, last="long long")
    cdef _insert(self, list entries)
    @cython.locals(consumer=Consumer)
    cdef _release(self, QueuedMessage entry)
    cpdef wake(self, Consumer consumer)
