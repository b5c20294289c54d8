cimport cython

from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as

cdef Py_ssize_t _COMPACT_FROM
cdef Message _REMOVED
cdef QueuedMessage _NO_ENTRY


cdef class Window:
    cdef list _entries
    cdef Py_ssize_t _head
    cdef Py_ssize_t _gaps
    cdef list _requeued

    cpdef bint has_first(self) noexcept
    cpdef QueuedMessage first(self)
    @cython.locals(high=Py_ssize_t, middle=Py_ssize_t, entry=QueuedMessage)
    cdef Py_ssize_t _index_of(self, list entries, Py_ssize_t low, long long position) except -1
    @cython.locals(entries=list, entry=QueuedMessage)
    cdef Py_ssize_t _skip_gaps(self, Py_ssize_t at) except -1
    @cython.locals(entries=list)
    cdef _close_gaps(self, Py_ssize_t index)
    cdef _compact(self)
    @cython.locals(first=QueuedMessage, entry=QueuedMessage, entries=list, at=Py_ssize_t)
    cpdef QueuedMessage first_from(self, long long position)
    @cython.locals(entries=list, index=Py_ssize_t, other=QueuedMessage)
    cdef bint _fill_gap(self, QueuedMessage entry) except -1
    @cython.locals(entries=list, returning=list, last="long long", passed=Py_ssize_t, start=Py_ssize_t)
    cdef _merge(self)
    cdef _return(self, QueuedMessage entry)
