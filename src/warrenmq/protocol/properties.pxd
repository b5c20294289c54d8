cimport cython

from warrenmq.protocol cimport big_endian
from warrenmq.protocol.values cimport ValueReader, encode_shortstr, encode_table, encode_timestamp

cdef int _CONTENT_TYPE
cdef int _CONTENT_ENCODING
cdef int _HEADERS
cdef int _DELIVERY_MODE
cdef int _PRIORITY
cdef int _CORRELATION_ID
cdef int _REPLY_TO
cdef int _EXPIRATION
cdef int _MESSAGE_ID
cdef int _TIMESTAMP
cdef int _TYPE
cdef int _USER_ID
cdef int _APP_ID
cdef int _CLUSTER_ID

cdef int _FIRST
cdef int _KNOWN
cdef int _CONTINUATION
cdef int _BYTES

cdef int _FLAGS_AT
cdef int _LIST_AT
cdef int _STRING

cdef tuple _BYTE
cdef object _pack_start


cdef class BasicProperties:
    cdef public object content_type
    cdef public object content_encoding
    cdef public object headers
    cdef public object delivery_mode
    cdef public object priority
    cdef public object correlation_id
    cdef public object reply_to
    cdef public object expiration
    cdef public object message_id
    cdef public object timestamp
    cdef public object type
    cdef public object user_id
    cdef public object app_id
    cdef public object cluster_id

    @cython.locals(flags=int, parts=list)
    cpdef bytes encode(self)


cpdef bytes content_header(unsigned long long body_size, BasicProperties properties)

@cython.locals(flags=int, flag=int, reader=ValueReader)
cpdef object decode(bytes data, Py_ssize_t offset=*)
@cython.locals(flags=int, flag=int, offset=Py_ssize_t, end=Py_ssize_t)
cpdef object validate(bytes header)
cdef object _require_valid_table(bytes header, Py_ssize_t start, Py_ssize_t end)

cpdef int property_flags(bytes header) except -1
@cython.locals(flags=int)
cpdef int delivery_mode(bytes header) except -1
@cython.locals(flags=int)
cpdef int priority(bytes header) except -2
cpdef str correlation_id(bytes header)
cpdef str reply_to(bytes header)
cpdef str expiration(bytes header)
cpdef str message_id(bytes header)
@cython.locals(flags=int, start=Py_ssize_t)
cpdef object timestamp(bytes header)
cpdef str user_id(bytes header)
@cython.locals(flags=int, reader=ValueReader)
cpdef dict headers(bytes header)
@cython.locals(flags=int, start=Py_ssize_t, end=Py_ssize_t, entry=Py_ssize_t, reader=ValueReader)
cpdef bytes text_header(bytes header, bytes key)
@cython.locals(flags=int, start=Py_ssize_t)
cpdef tuple headers_span(bytes header)

@cython.locals(flags=int, kept=int, flag=int, offset=Py_ssize_t, end=Py_ssize_t, parts=list)
cpdef bytes subset(bytes header, int wanted)

cpdef bytes with_reply_to(bytes header, str value)
cpdef bytes without_expiration(bytes header)
cpdef bytes with_header(bytes header, str key, object value)
@cython.locals(start=Py_ssize_t, end=Py_ssize_t, length=Py_ssize_t)
cpdef bytes with_entry(bytes header, bytes entry)
@cython.locals(start=Py_ssize_t, end=Py_ssize_t, kept_from=Py_ssize_t, entry=Py_ssize_t, unwanted=bytes, reader=ValueReader)
cpdef bytes without_header(bytes header, str key)

@cython.locals(flags=int, start=Py_ssize_t, end=Py_ssize_t)
cdef bytes _spliced(bytes header, int flag, bytes value)
@cython.locals(flags=int, reader=ValueReader)
cdef str _text_of(bytes header, int flag)
@cython.locals(flags=int)
cdef int _flags_at(bytes data, Py_ssize_t offset) except -1
@cython.locals(flag=int, offset=Py_ssize_t)
cdef Py_ssize_t _offset_of(bytes header, int flags, int wanted) except -1
@cython.locals(size=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t _end_of(bytes header, Py_ssize_t offset, int flag) except -1
cdef int _byte_at(bytes header, Py_ssize_t offset) except -1
cdef object _read_property(ValueReader reader, int flag)
cdef bytes _encode_octet(object value)
