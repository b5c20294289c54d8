cimport cython

from warrenmq.events cimport memory
from warrenmq.events.memory cimport ConstBytes

ctypedef long long BlockOfLongs[64]
ctypedef int BlockOfInts[64]
ctypedef unsigned int BlockOfNumbers[64]
ctypedef Py_ssize_t BlockOfOffsets[64]
ctypedef unsigned char BlockOfBytes[64]
ctypedef unsigned char Marks[256]

cdef int _BLOCK
cdef int _HAS_IDS
cdef int _SAME_IDS
cdef int _ROUTED_FOLLOWS
cdef int _IS_SHORT
cdef int _DELIVERED_FOLLOWS
cdef int _IS_PUBLISHED
cdef int _HAS_DETAILS
cdef Py_ssize_t _FULL_SIZE
cdef Py_ssize_t _SHORT_SIZE
cdef Py_ssize_t _DIRECT_SIZE
cdef Py_ssize_t _PUBLISHED_SIZE
cdef Py_ssize_t _DETAILS_SIZE
cdef int _ROUTED
cdef int _DELIVERED
cdef int _AUTO_ACK
cdef int _MAX_CODE
cdef unsigned int _LIMIT


@cython.final
cdef class RowReader:
    cdef object _buffer
    cdef ConstBytes data
    cdef readonly Py_ssize_t at
    cdef Py_ssize_t _end
    cdef int _second
    cdef unsigned int _second_context
    cdef bint _has_message
    cdef readonly bint is_damaged
    cdef long long differing_times
    cdef BlockOfLongs times
    cdef BlockOfLongs uids
    cdef BlockOfLongs publish_times
    cdef BlockOfLongs enqueue_times
    cdef BlockOfOffsets ids_at
    cdef BlockOfOffsets details_at
    cdef BlockOfNumbers contexts
    cdef BlockOfInts sizes
    cdef BlockOfInts depths
    cdef BlockOfInts attempts
    cdef BlockOfInts priorities
    cdef BlockOfBytes kinds
    cdef BlockOfBytes reasons
    cdef BlockOfBytes validity
    cdef Marks used_kinds

    @cython.locals(
        data=ConstBytes, at=Py_ssize_t, end=Py_ssize_t, row=Py_ssize_t, last=Py_ssize_t, time="long long",
        uid="long long", publish_time="long long", enqueue_time="long long", ids_at=Py_ssize_t, context="unsigned int",
        size="unsigned int", depth="unsigned int", attempt="unsigned int", priority=int, kind=int, reason=int,
        flags=int, bits=int, size_bit=int, details_at=Py_ssize_t,
    )
    cdef Py_ssize_t read(self) noexcept nogil
    cdef void _copy_row(self, Py_ssize_t row, Py_ssize_t to) noexcept nogil
    @cython.locals(at=Py_ssize_t, size=Py_ssize_t)
    cpdef tuple message_ids(self, Py_ssize_t row)
    @cython.locals(at=Py_ssize_t, size=Py_ssize_t, note_at=Py_ssize_t)
    cpdef tuple details(self, Py_ssize_t row)


@cython.locals(size="unsigned int", _=int)
cdef Py_ssize_t _end_of_ids(ConstBytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
@cython.locals(size="unsigned int")
cdef Py_ssize_t _end_of_details(ConstBytes data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
@cython.locals(used=list, seen=bytearray, row=Py_ssize_t, count=Py_ssize_t)
cpdef list used_contexts(RowReader reader, Py_ssize_t number_of_contexts)
@cython.locals(row=Py_ssize_t, read=Py_ssize_t, block=Py_ssize_t)
cpdef check_rows(RowReader reader, Py_ssize_t count, dict contexts)
