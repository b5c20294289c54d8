cimport cython

from warrenmq.events.rows cimport Trace, make_trace

cdef Py_ssize_t _MARK_SIZE
cdef int _CONTENT_TYPE
cdef int _HEADERS
cdef int _CORRELATION_ID
cdef int _MESSAGE_ID
cdef int _OCTETS
cdef Py_ssize_t _LIST_AT
cdef bytes _TRACEPARENT
cdef bytes _SOURCE
cdef bytes _DEATH


@cython.locals(mark=bytes, at="unsigned char *", place=int)
cpdef bytes mark_of(long long uid, long long publish_time)
@cython.locals(
    flags=int, message_id=bytes, correlation_id=bytes, trace_id=bytes, span_id=bytes, source="long long",
    at="const unsigned char *", place=int, uid="long long", publish_time="long long",
)
cpdef Trace trace_of(bytes mark, bytes header)
@cython.locals(flags=int)
cpdef bytes sampling_key(bytes header)
cpdef bint is_republished(bytes header) except -1
cpdef long long source_of(bytes header) except -1
@cython.locals(at=Py_ssize_t, flag=int)
cdef bytes _short_string(bytes header, int flags, int wanted)
@cython.locals(at=Py_ssize_t)
cdef bytes _long_string(bytes header, bytes entry)
