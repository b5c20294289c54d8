cimport cython

from warrenmq.events cimport memory, records, schema
from warrenmq.events.memory cimport ConstBytes

ctypedef long long BlockOfLongs[64]
ctypedef int BlockOfInts[64]
ctypedef unsigned int BlockOfNumbers[64]
ctypedef Py_ssize_t BlockOfOffsets[64]
ctypedef unsigned char BlockOfBytes[64]
ctypedef unsigned char Marks[256]

cdef unsigned int _LIMIT


@cython.final
cdef class RowReader:
    cdef object _buffer
    cdef ConstBytes data
    cdef readonly Py_ssize_t at
    cdef Py_ssize_t _first, _end
    cdef int _second
    cdef unsigned int _second_context
    cdef readonly bint is_damaged
    cdef long long differing_times
    cdef BlockOfLongs times, uids, publish_times, enqueue_times
    cdef BlockOfOffsets ids_at, details_at
    cdef BlockOfNumbers contexts
    cdef BlockOfInts sizes, depths, attempts, priorities
    cdef BlockOfBytes kinds, reasons, validity
    cdef Marks used_kinds

    cdef Py_ssize_t read(self) noexcept nogil
    cpdef tuple message_ids(self, Py_ssize_t row)
    cpdef tuple details(self, Py_ssize_t row)


cdef Py_ssize_t _end_of_ids(ConstBytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
cdef Py_ssize_t _end_of_details(ConstBytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
cpdef tuple scan(RowReader reader)
