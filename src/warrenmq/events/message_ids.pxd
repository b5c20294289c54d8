from warrenmq.events cimport memory
from warrenmq.events.memory cimport Bytes


cpdef bytes pack_message_ids(
    long long source_uid, bytes message_id, bytes correlation_id, bytes trace_id, bytes span_id
)
cpdef bytes clean_text(bytes text)
cdef Py_ssize_t _size_of(bytes text) noexcept
cdef Py_ssize_t _store_id(Bytes out, Py_ssize_t at, bytes text) noexcept
