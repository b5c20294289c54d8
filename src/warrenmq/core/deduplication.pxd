cimport cython

from warrenmq.protocol.properties cimport headers as decode_headers

cdef int _HEADERS
cdef Py_ssize_t _ID_SIZE


cdef class SeenIds:
    cdef dict _ids


@cython.final
cdef class Window(SeenIds):
    cdef readonly Py_ssize_t size
    cdef readonly object _order
    cdef dict _again
    cdef bint _has_times

    cpdef bint has(self, bytes id, long long now_ms) except -1
    cpdef add(self, bytes id, long long expires_ms, bint is_kept, long long now_ms)
    @cython.locals(oldest=bytes)
    cdef _forget_some(self, long long now_ms)
    cdef bytes _oldest(self)


@cython.final
cdef class Present(SeenIds):
    cpdef bint has(self, bytes id) except -1
    cpdef add(self, bytes id, long long position, bint is_kept)
    cpdef bint remove(self, bytes id, long long position) except -1


@cython.final
cdef class Deduplication:
    cdef object _clock
    cdef bytes _id
    cdef Present _in_queue
    cdef bytes _marker
    cdef str _header
    cdef long long _now_ms
    cdef object _store
    cdef long long _ttl_ms
    cdef long long _default_ttl_ms
    cdef Window _window

    cpdef bint has_seen(self, bytes header) except -1
    @cython.locals(id=bytes, number="long long")
    cpdef note(self, long long position, bint is_kept)
    cpdef left(self, bytes header, long long position)
    @cython.locals(headers=dict)
    cdef bytes _read(self, bytes header)


cpdef bytes digest_of(object value)
cdef bint _is_over(long long expires_ms, long long now_ms) noexcept
