cimport cython

from warrenmq.events.row_reader cimport RowReader

ctypedef const unsigned char *Octets
ctypedef long long BlockOfLongs[64]
ctypedef int BlockOfInts[64]
ctypedef unsigned char BlockOfBytes[64]
ctypedef unsigned char Marks[256]

cdef int _BLOCK
cdef int _HAS_IDS
cdef int _ROUTED_FOLLOWS
cdef int _IS_SHORT
cdef int _DELIVERED_FOLLOWS
cdef int _IS_PUBLISHED
cdef Py_ssize_t _FULL_SIZE
cdef Py_ssize_t _SHORT_SIZE
cdef Py_ssize_t _DIRECT_SIZE
cdef Py_ssize_t _PUBLISHED_SIZE
cdef int _ROUTED
cdef int _DELIVERED
cdef int _AUTO_ACK


@cython.final
cdef class RowBlocks:
    cdef RowReader _held
    cdef Octets _data
    cdef Py_ssize_t _at
    cdef Py_ssize_t _data_end
    cdef int _following
    cdef int _second_context
    cdef long long apart
    cdef BlockOfLongs times
    cdef BlockOfLongs uids
    cdef BlockOfLongs publish_times
    cdef BlockOfLongs enqueue_times
    cdef BlockOfInts contexts
    cdef BlockOfInts sizes
    cdef BlockOfInts depths
    cdef BlockOfInts attempts
    cdef BlockOfInts priorities
    cdef BlockOfBytes kinds
    cdef BlockOfBytes reasons
    cdef BlockOfBytes there
    cdef Marks used_kinds

    @cython.locals(
        data=Octets, at=Py_ssize_t, end=Py_ssize_t, row=Py_ssize_t, last=Py_ssize_t, time="long long", uid="long long",
        publish_time="long long", enqueue_time="long long", context="unsigned int", size="unsigned int",
        depth="unsigned int", attempt="unsigned int", priority=int, kind=int, reason=int, flags=int, there=int, size_there=int,
    )
    cdef Py_ssize_t read(self) noexcept nogil
    cdef void _follow(self, Py_ssize_t row, Py_ssize_t to) noexcept nogil


@cython.locals(size="unsigned int", _=int)
cdef Py_ssize_t _behind_texts(Octets data, Py_ssize_t at, Py_ssize_t end) noexcept nogil
@cython.locals(value="long long")
cdef long long _get_i64(Octets data, Py_ssize_t at) noexcept nogil
@cython.locals(value="unsigned int")
cdef unsigned int _get_u32(Octets data, Py_ssize_t at) noexcept nogil
