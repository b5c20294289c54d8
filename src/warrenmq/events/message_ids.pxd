cimport cython


@cython.locals(packed=bytes, data="unsigned char *", at=Py_ssize_t, size=Py_ssize_t)
cpdef bytes pack_message_ids(
    long long source_uid, bytes message_id, bytes correlation_id, bytes trace_id, bytes span_id
)
cdef bytes _clean(bytes text)
@cython.locals(data="const unsigned char *", found=int, at=Py_ssize_t)
cdef bint _is_ascii(bytes text) noexcept
cdef Py_ssize_t _size_of(bytes text) noexcept
@cython.locals(size=Py_ssize_t, source="const unsigned char *")
cdef Py_ssize_t _put_text(unsigned char *data, Py_ssize_t at, bytes text) noexcept
cdef void _put_u32(unsigned char *data, Py_ssize_t at, unsigned int value) noexcept
