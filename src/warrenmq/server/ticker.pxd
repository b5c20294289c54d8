cimport cython


@cython.final
cdef class Ticker:
    cdef object _call_soon
    cdef object _broker
    cdef bint _is_scheduled
    cdef public object after_turn
    cdef readonly list dirty

    cpdef schedule(self)
    cpdef mark_dirty(self, outbox)
