cimport cython

from warrenmq.protocol cimport properties


@cython.final
cdef class ConsumerFilter:
    cdef object _matches
    cdef int _used
    cdef bytes _last
    cdef bint _last_result
    cdef readonly dict cache
    cdef Py_ssize_t _cached_bytes
    cdef readonly long long tested

    @cython.locals(result=bint, key=bytes)
    cpdef bint accepts(self, bytes header) except -1
