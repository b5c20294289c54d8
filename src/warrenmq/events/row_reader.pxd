cimport cython

ctypedef const unsigned char *Octets

cdef int _HAS_IDS
cdef int _SAME_IDS
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
cdef int _MAX_CODE
cdef long long _HIGHEST


@cython.final
cdef class RowReader:
    cdef object _held
    cdef Octets data
    cdef readonly Py_ssize_t at
    cdef Py_ssize_t _data_end
    cdef int _following
    cdef Py_ssize_t _second_context
    cdef readonly bint is_damaged
    cdef bint has_message
    cdef int flags
    cdef readonly int kind
    cdef readonly int reason
    cdef readonly Py_ssize_t context
    cdef readonly long long time
    cdef readonly long long attempt
    cdef readonly int priority
    cdef readonly long long size
    cdef readonly long long depth
    cdef readonly long long enqueue_time
    cdef readonly long long uid
    cdef readonly long long publish_time
    cdef readonly long long source_uid
    cdef readonly Py_ssize_t message_id_at
    cdef readonly Py_ssize_t message_id_size
    cdef readonly Py_ssize_t correlation_id_at
    cdef readonly Py_ssize_t correlation_id_size
    cdef readonly Py_ssize_t trace_id_at
    cdef readonly Py_ssize_t trace_id_size
    cdef readonly Py_ssize_t span_id_at
    cdef readonly Py_ssize_t span_id_size

    @cython.locals(data=Octets, at=Py_ssize_t)
    cdef bint advance(self) noexcept nogil
    cdef void _follow(self) noexcept nogil
    cpdef bytes octets(self, Py_ssize_t at, Py_ssize_t size)
    cpdef bint numbers_fit(self)
    cdef void _forget_texts(self) noexcept nogil
    cdef void _read_texts(self) noexcept nogil
    @cython.locals(size="long long")
    cdef Py_ssize_t _text_size(self) noexcept nogil
    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t _pass(self, Py_ssize_t size) noexcept nogil
    cdef bint _damaged(self) noexcept nogil


@cython.locals(used=list, seen=bytearray)
cpdef list used_contexts(RowReader reader, Py_ssize_t number_of_contexts)
cpdef check_rows(RowReader reader, Py_ssize_t count, dict contexts)
@cython.locals(changeable=bytearray, constant=bytes)
cdef Octets _pointer_to(object data) except NULL
@cython.locals(value="long long")
cdef long long _get_i64(Octets data, Py_ssize_t at) noexcept nogil
@cython.locals(value="unsigned int")
cdef long long _get_u32(Octets data, Py_ssize_t at) noexcept nogil
