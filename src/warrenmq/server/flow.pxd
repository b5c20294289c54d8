cimport cython

from warrenmq.core.stats cimport Stats


@cython.final
cdef class MemoryAlarm:
    cdef Stats _stats
    cdef long long _limit
    cdef long long _release
    cdef readonly dict blocked
    cdef readonly bint is_raised

    cpdef judge(self)
