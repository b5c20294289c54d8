cimport cython

from warrenmq.events.row_reader cimport RowReader
from warrenmq.events.rows cimport Rows

ctypedef unsigned char *Octets
ctypedef Py_ssize_t Places[21]

cdef int _TIME
cdef int _KIND
cdef int _UID
cdef int _MESSAGE_ID
cdef int _PUBLISH_TIME
cdef int _ENQUEUE_TIME
cdef int _VHOST
cdef int _EXCHANGE
cdef int _ROUTING_KEY
cdef int _QUEUE
cdef int _CONSUMER
cdef int _CONNECTION
cdef int _CHANNEL
cdef int _SIZE
cdef int _ATTEMPT
cdef int _REASON
cdef int _CORRELATION_ID
cdef int _TRACE_ID
cdef int _SPAN_ID
cdef int _SOURCE_UID
cdef int _DEPTH


@cython.final
cdef class ColumnWriter:
    cdef Octets _out
    cdef Places _flags
    cdef Places _values
    cdef Places _texts
    cdef Places _nulls
    cdef Places _text_ends
    cdef Py_ssize_t _row

    cpdef list fill(self, RowReader reader)
    cdef void _fill(self, RowReader reader) noexcept nogil
    cdef void _write_row(self, RowReader row) noexcept nogil
    cdef void _put_i64(self, int column, long long value, bint is_there) noexcept nogil
    cdef void _put_i32(self, int column, long long value, bint is_there) noexcept nogil
    cdef void _put_i8(self, int column, int value, bint is_there) noexcept nogil
    @cython.locals(end=Py_ssize_t)
    cdef void _put_text(self, int column, RowReader row, Py_ssize_t at, Py_ssize_t size) noexcept nogil
    @cython.locals(flags=Py_ssize_t, at=Py_ssize_t)
    cdef bint _is_there(self, int column, bint is_there) noexcept nogil


cpdef put_octets(object out, Py_ssize_t at, bytes octets)
@cython.locals(octets=bytes)
cdef Octets _pointer_to(object data) except NULL
cdef void _store_i64(Octets out, Py_ssize_t at, long long value) noexcept nogil
cdef void _store_i32(Octets out, Py_ssize_t at, int value) noexcept nogil
cdef void _copy(Octets out, Py_ssize_t at, const unsigned char *source, Py_ssize_t source_at, Py_ssize_t size) noexcept nogil
