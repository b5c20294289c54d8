cimport cython

from warrenmq.core.message cimport QueuedMessage

cdef Py_ssize_t _COMPACT_FROM


@cython.final
cdef class Line:
    cdef list _entries
    cdef list _returned
    cdef list _tail
    cdef Py_ssize_t _head
    cdef readonly Py_ssize_t paged

    cpdef Py_ssize_t count(self) noexcept
    cpdef bint is_empty(self) noexcept
    cpdef bint has_first(self) noexcept
    cpdef QueuedMessage first(self)
    cpdef append(self, QueuedMessage entry)
    @cython.locals(head=Py_ssize_t, entries=list, entry=QueuedMessage)
    cpdef QueuedMessage take_first(self)
    cpdef put_back(self, list returning)
    @cython.locals(entries=list, returning=list, last="long long", passed=Py_ssize_t, start=Py_ssize_t, entry=QueuedMessage)
    cdef _merge(self)
    cpdef begin_with(self, Py_ssize_t paged, list entries)
    @cython.locals(entries=list, at=Py_ssize_t, kept=Py_ssize_t, entry=QueuedMessage)
    cpdef Py_ssize_t cut_window(self, Py_ssize_t keep_bytes, long long behind) except -1
    @cython.locals(tail=list, at=Py_ssize_t, size=Py_ssize_t, entry=QueuedMessage)
    cpdef list cut_tail(self, Py_ssize_t limit)
    cpdef page_in(self, list entries)
    cpdef pages_are_gone(self, Py_ssize_t count)
    cpdef clear(self)
