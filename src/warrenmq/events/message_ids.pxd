cimport cython

from warrenmq.events cimport memory
from warrenmq.events.memory cimport Bytes


@cython.locals(packed=bytes, out=Bytes, at=Py_ssize_t, size=Py_ssize_t)
cpdef bytes pack_message_ids(
    long long source_uid, bytes message_id, bytes correlation_id, bytes trace_id, bytes span_id
)
cpdef bytes clean_text(bytes text)
cdef Py_ssize_t _size_of(bytes text) noexcept
@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _store_id(Bytes out, Py_ssize_t at, bytes text) noexcept
