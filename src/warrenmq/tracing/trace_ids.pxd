cimport cython

from warrenmq.events.message_ids cimport pack_message_ids

cdef int _CONTENT_TYPE
cdef int _HEADERS
cdef int _PRIORITY
cdef int _CORRELATION_ID
cdef int _MESSAGE_ID
cdef int _BYTES
cdef Py_ssize_t _LIST_OFFSET
cdef bytes _TRACEPARENT
cdef bytes _SOURCE
cdef bytes _DEATH
cdef bytes _OWN_ID


@cython.locals(
    flags=int, message_id=bytes, correlation_id=bytes, trace_id=bytes, span_id=bytes, source="long long"
)
cpdef bytes message_ids_of(bytes header)
@cython.locals(flags=int)
cpdef int priority_of(bytes header) except -1
@cython.locals(flags=int, wanted=int, offset=Py_ssize_t, found="unsigned long long")
cpdef unsigned long long sampling_hash(bytes header, int space) except? 1
cpdef bint is_republished(bytes header) except -1
cpdef long long source_of(bytes header) except -1
@cython.locals(text=bytes)
cdef bytes _own_id(bytes header)
@cython.locals(offset=Py_ssize_t)
cdef bytes _short_string(bytes header, int flags, int wanted)
@cython.locals(offset=Py_ssize_t, flag=int, size=Py_ssize_t)
cdef Py_ssize_t _offset_of(bytes header, int flags, int wanted) except -1
@cython.locals(offset=Py_ssize_t)
cdef bytes _long_string(bytes header, bytes entry)
