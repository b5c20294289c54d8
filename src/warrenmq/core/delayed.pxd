cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.expiry cimport MessageExpiry
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn


cdef class DelayedMessages:
    cdef readonly Stats stats
    cdef readonly Turn turn
    cdef readonly bint is_deleted
    cdef readonly long long released
    cdef readonly Backlog backlog
    cdef object _release
    cdef MessageExpiry _expiry

    @cython.locals(backlog=Backlog, entry=QueuedMessage)
    cpdef int add(self, Message message, long long due_ms, int attempts) except -1
    cpdef drop(self, QueuedMessage entry, int reason)
    cpdef finish_drop(self, QueuedMessage entry, int reason)
