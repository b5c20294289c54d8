cimport cython


@cython.final
cdef class Turn:
    cdef public long long now_ms
    cdef public object begin
    cdef public list due
    cdef public list confirming
    cdef public dict deferred
    cdef public list cancelled
    cdef public bint is_settling
    cdef public bint has_defined
    cdef public dict pending_replies
