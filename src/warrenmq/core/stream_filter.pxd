cimport cython

from warrenmq.protocol.properties cimport text_header

cdef bytes _KEY


@cython.final
cdef class StreamFilter:
    cdef object _values
    cdef bint _matches_unfiltered
    cdef readonly object needles

    @cython.locals(value=bytes)
    cpdef bint accepts(self, bytes header) except -1
