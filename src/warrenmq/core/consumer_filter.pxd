cimport cython


@cython.final
cdef class ConsumerFilter:
    cdef object _matches
    cdef readonly dict cache
    cdef Py_ssize_t _cached_bytes
    cdef readonly long long tested

    @cython.locals(result=bint)
    cpdef bint accepts(self, bytes header) except -1
