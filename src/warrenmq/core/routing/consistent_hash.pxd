cimport cython
from libc cimport math

cdef unsigned long long _MASK
cdef unsigned long long _FIRST_FACTOR
cdef unsigned long long _SECOND_FACTOR
cdef double _UNIT
cdef double _NEVER


@cython.final
cdef class Share:
    cdef unsigned long long seed
    cdef double mean
    cdef object destination


cdef class ConsistentHashMatcher:
    cdef readonly bint uses_message
    cdef str _header
    cdef object _read_property
    cdef object _name_of
    cdef dict _keys
    cdef list _shares

    @cython.locals(
        value="unsigned long long", mixed="unsigned long long", earliest=double, time=double, share=Share, winner=Share
    )
    cpdef match(self, str key, traits, dict found)
