cimport cython

from warrenmq.events.row_reader cimport RowReader, check_rows, used_names

cdef Py_ssize_t _FIRST_CAPACITY
cdef Py_ssize_t _LONGEST_ROW
cdef long long _HIGHEST
cdef long long _KEY_MASK
cdef int _CODES
cdef int _SLOTS
cdef int _SAME
cdef int _ENQUEUED
cdef int _SOURCE
cdef int _MESSAGE_ID
cdef int _CORRELATION_ID
cdef int _TRACE_ID
cdef int _SPAN_ID


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Trace:
    cdef readonly long long uid
    cdef readonly long long publish_time
    cdef readonly long long source_uid
    cdef readonly bytes message_id
    cdef readonly bytes correlation_id
    cdef readonly bytes trace_id
    cdef readonly bytes span_id


@cython.locals(trace=Trace)
cpdef Trace make_trace(
    long long uid,
    long long publish_time,
    long long source_uid,
    bytes message_id,
    bytes correlation_id,
    bytes trace_id,
    bytes span_id,
)


@cython.final
cdef class Rows:
    cdef bytearray _data
    cdef Py_ssize_t _capacity
    cdef list _names
    cdef dict _numbers
    cdef list _found
    cdef list _found_numbers
    cdef Trace _last
    cdef Py_ssize_t _logged_size
    cdef Py_ssize_t _logged_count
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly long long first_time
    cdef readonly long long last_time
    cdef readonly Py_ssize_t message_id_sum
    cdef readonly Py_ssize_t correlation_id_sum
    cdef readonly Py_ssize_t trace_id_sum
    cdef readonly Py_ssize_t span_id_sum

    @cython.locals(exchange_and_key="long long")
    cpdef add(
        self,
        int kind,
        long long time,
        Trace trace,
        bytes address,
        str vhost,
        str queue,
        str consumer,
        str connection,
        int channel,
        long long enqueue_time,
        long long size,
        int attempt,
        int reason,
        long long depth,
    )
    @cython.locals(taken=Rows)
    cpdef Rows take(self)
    cpdef bytes unlogged(self)
    @cython.locals(reader=RowReader, trace=Trace)
    cpdef Py_ssize_t extend(self, bytes raw) except -1
    cpdef RowReader reader(self)
    cpdef list names(self)
    @cython.locals(reader=RowReader)
    cpdef list events(self)
    cdef _begin(self)
    @cython.locals(slot=Py_ssize_t)
    cdef Py_ssize_t _number_of(self, object name) except -1  # long long with "except": see protocol/values.pxd
    cdef _learn(self, object name)
    @cython.locals(data="unsigned char *", start=Py_ssize_t, at=Py_ssize_t, flags=int)
    cdef _write(
        self,
        int kind,
        long long time,
        Trace trace,
        long long vhost,
        long long exchange,
        long long routing_key,
        long long queue,
        long long consumer,
        long long connection,
        long long channel,
        long long enqueue_time,
        long long size,
        long long attempt,
        int reason,
        long long depth,
    )
    @cython.locals(data="unsigned char *", at=Py_ssize_t, flags=int)
    cdef int _write_message(self, Trace trace) except -1
    @cython.locals(data="unsigned char *", at=Py_ssize_t, size=Py_ssize_t)
    cdef _write_text(self, bytes text)
    cdef _count(self, long long time, Trace trace)
    cdef _grow(self, Py_ssize_t needed)
    @cython.locals(reader=RowReader, used=list, pieces=list, name=bytes)
    cdef bytes _raw_from(self, Py_ssize_t start, Py_ssize_t count)


cdef bytes _clean(bytes text)
@cython.locals(data="const unsigned char *", found=int, at=Py_ssize_t)
cdef bint _is_ascii(bytes text) noexcept
cdef Trace _trace_of(RowReader reader)
cdef bytes _varint(long long value)
cdef long long _limited(long long value) noexcept
@cython.locals(address=size_t)
cdef Py_ssize_t _slot_of(object name) noexcept
cdef Py_ssize_t _put_varint(unsigned char *data, Py_ssize_t at, unsigned long long value) noexcept
cdef Py_ssize_t _put_i64(unsigned char *data, Py_ssize_t at, long long value) noexcept
@cython.locals(source="const unsigned char *")
cdef void _put_text(unsigned char *data, Py_ssize_t at, bytes text, Py_ssize_t size) noexcept
