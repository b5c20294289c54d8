cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.protocol.properties cimport priority as priority_of

cdef int NOTHING


cdef class PriorityBacklog(Backlog):
    cdef list _levels
    cdef list _open
    cdef object _open_store

    cdef Backlog _make_level(self, int priority)
    @cython.locals(priority=int, level=Backlog)
    cpdef Backlog part_of(self, Message message)
    cpdef list parts(self)
    cdef _leave_out(self, Backlog level)
    cdef _count_in(self, Backlog level)
    @cython.locals(size=Py_ssize_t, level=Backlog)
    cpdef Py_ssize_t bytes_in_memory(self) noexcept
    @cython.locals(level=Backlog)
    cpdef bint has_first(self) noexcept
    @cython.locals(level=Backlog)
    cpdef QueuedMessage first(self)
    @cython.locals(level=Backlog)
    cpdef int persist(self, QueuedMessage entry) except -1
    cpdef count_delivered(self, QueuedMessage entry)
    @cython.locals(level=Backlog)
    cpdef append(self, QueuedMessage entry)
    @cython.locals(level=Backlog, entry=QueuedMessage)
    cpdef QueuedMessage take(self)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(level=Backlog, entry=QueuedMessage)
    cpdef requeue(self, list entries)
    @cython.locals(level=Backlog)
    cpdef page_out_requeued(self)
    @cython.locals(level=Backlog)
    cpdef page_out_tail(self)
    cpdef bint needs_page(self)
    @cython.locals(level=Backlog)
    cpdef read_ahead(self)
    @cython.locals(level=Backlog)
    cpdef await_page(self, waiter)
