cimport cython

from warrenmq.core.stats cimport Stats


@cython.final
cdef class Alarms:
    cdef Stats _stats
    cdef long long _limit
    cdef long long _release
    cdef readonly dict blocked
    cdef readonly bint is_memory_short
    cdef readonly bint is_raised
    cdef readonly object raised

    cpdef check_memory(self)
