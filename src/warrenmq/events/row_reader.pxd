cimport cython

ctypedef const unsigned char *Octets

cdef int _SAME
cdef int _ENQUEUED
cdef int _SOURCE
cdef int _MESSAGE_ID
cdef int _CORRELATION_ID
cdef int _TRACE_ID
cdef int _SPAN_ID
cdef int _KNOWN
cdef int _SHORTEST_ROW
cdef int _LONGEST_VARINT


@cython.final
cdef class RowReader:
    cdef object _held
    cdef Octets data
    cdef readonly Py_ssize_t at
    cdef Py_ssize_t end
    cdef readonly bint is_damaged
    cdef readonly bint is_same
    cdef bint has_message
    cdef int flags
    cdef readonly int kind
    cdef readonly int reason
    cdef readonly long long time
    cdef readonly long long vhost
    cdef readonly long long exchange
    cdef readonly long long routing_key
    cdef readonly long long queue
    cdef readonly long long consumer
    cdef readonly long long connection
    cdef readonly long long channel
    cdef readonly long long attempt
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

    @cython.locals(data=Octets)
    cdef bint advance(self) noexcept nogil
    cpdef tuple name_numbers(self)
    cpdef bytes octets(self, Py_ssize_t at, Py_ssize_t size)
    @cython.locals(flags=int)
    cdef void _read_message(self) noexcept nogil
    @cython.locals(value="long long", shift=int, data=Octets, octet="long long")
    cdef long long _varint(self) noexcept nogil
    cdef long long _i64(self) noexcept nogil
    cdef Py_ssize_t _text_size(self) noexcept nogil
    cdef void _skip(self, Py_ssize_t size) noexcept nogil
    cdef bint _damaged(self) noexcept nogil


@cython.locals(used=list, seen=bytearray)
cpdef list used_names(RowReader reader, Py_ssize_t number_of_names)
cdef bint _are_known(tuple numbers, dict names) except -1
cpdef check_rows(RowReader reader, Py_ssize_t count, dict names)
@cython.locals(changeable=bytearray, constant=bytes)
cdef Octets _pointer_to(object data) except NULL
@cython.locals(value="long long")
cdef long long _get_i64(Octets data, Py_ssize_t at) noexcept nogil
