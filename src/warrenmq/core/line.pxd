cimport cython

from warrenmq.core.message cimport QueuedMessage

cdef Py_ssize_t _COMPACT_FROM


@cython.final
cdef class Line:
    cdef list _entries
    cdef list _returned
    cdef Py_ssize_t _head

    cpdef bint is_empty(self) noexcept
    cpdef append(self, QueuedMessage entry)
    @cython.locals(head=Py_ssize_t, entries=list, entry=QueuedMessage)
    cpdef QueuedMessage take_first(self)
    cpdef put_back(self, list returning)
    @cython.locals(entries=list, returning=list, last="long long", passed=Py_ssize_t, start=Py_ssize_t, entry=QueuedMessage)
    cdef _merge(self)
    cpdef clear(self)
