cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.message cimport Message

cdef long long _NONE


@cython.final
cdef class LengthLimit:
    cdef long long _max_length
    cdef long long _max_bytes
    cdef readonly bint rejects
    cdef readonly bint dead_letters

    cpdef bint is_exceeded(self, Backlog backlog) noexcept
    cpdef bint has_room_for(self, Message message, Backlog backlog) noexcept
    cpdef bint is_exceeded_without(self, Backlog backlog, Py_ssize_t count, long long size) noexcept


@cython.final
cdef class ExcessPages:
    cdef LengthLimit _limit
    cdef Backlog _backlog
    cdef Py_ssize_t _count
    cdef long long _size
