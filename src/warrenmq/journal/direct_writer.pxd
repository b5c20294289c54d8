cimport cython

ctypedef unsigned char *BytePointer
ctypedef Py_buffer *Views

cdef int _BLOCK
cdef int _O_DIRECT


@cython.final
cdef class DirectWriter:
    cdef BytePointer _stage
    cdef Py_ssize_t _stage_size
    cdef Views _views
    cdef Py_ssize_t _buffer
    cdef Py_ssize_t _buffer_done

    @cython.locals(count=Py_ssize_t, acquired=Py_ssize_t, left=Py_ssize_t, failure=int)
    cpdef bint write(self, int handle, object buffers, long long offset) except -1
    @cython.locals(
        failure=int, flags=int, is_direct=bint, is_whole=bint, misaligned=Py_ssize_t, size=Py_ssize_t, written=Py_ssize_t
    )
    cdef int _write(self, int handle, long long offset, Py_ssize_t left) noexcept nogil
    @cython.locals(piece=Py_ssize_t, done=Py_ssize_t, filled=Py_ssize_t, part=Py_ssize_t)
    cdef void _fill_stage(self, Py_ssize_t size) noexcept nogil
    cdef void _advance(self, Py_ssize_t written) noexcept nogil
