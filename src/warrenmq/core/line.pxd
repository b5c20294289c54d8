cimport cython

from warrenmq.core.message cimport QueuedMessage

cdef Py_ssize_t _COMPACT_FROM


@cython.final
cdef class Line:
    cdef list _entries
    cdef Py_ssize_t _head

    cpdef append(self, QueuedMessage entry)
    @cython.locals(head=Py_ssize_t, entries=list, entry=QueuedMessage)
    cpdef QueuedMessage take_first(self)
    @cython.locals(entries=list, last="long long", passed=Py_ssize_t, start=Py_ssize_t, merged=list)
    cpdef put_back(self, list returning)
    cpdef clear(self)
