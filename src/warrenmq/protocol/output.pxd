cimport cython

from warrenmq.protocol cimport big_endian

cdef Py_ssize_t _BIG_BODY
cdef Py_ssize_t _SCRATCH_SIZE
cdef Py_ssize_t _FRAME_OVERHEAD
cdef Py_ssize_t _SETTLEMENT_SIZE
cdef Py_ssize_t _CONTENT_START_SIZE
cdef unsigned int _ACK
cdef unsigned int _BASIC


@cython.final
cdef class BufferPool:
    cdef list free


cdef class OutputBuffer:
    cdef public Py_ssize_t frame_max
    cdef BufferPool pool
    cdef list chunks
    cdef bytearray scratch
    cdef Py_ssize_t capacity
    cdef Py_ssize_t length
    cdef readonly Py_ssize_t size

    cpdef put(self, bytes frames)
    cpdef put_method(self, int channel, bytes payload)
    cpdef put_ack(self, int channel, unsigned long long delivery_tag, bint multiple)
    @cython.locals(total=Py_ssize_t, at="unsigned char *")
    cpdef put_settlement(self, int channel, unsigned int index, unsigned long long delivery_tag, int bits)
    cpdef put_content(self, int channel, bytes method, bytes header, bytes body)
    @cython.locals(
        method_size=Py_ssize_t,
        list_size=Py_ssize_t,
        header_size=Py_ssize_t,
        body_size=Py_ssize_t,
        total=Py_ssize_t,
        is_small=bint,
        at="unsigned char *",
    )
    cpdef put_message(self, int channel, bytes method, bytes properties, bytes body)
    @cython.locals(
        tag_size=Py_ssize_t,
        address_size=Py_ssize_t,
        header_size=Py_ssize_t,
        body_size=Py_ssize_t,
        method_size=Py_ssize_t,
        total=Py_ssize_t,
        is_small=bint,
        at="unsigned char *",
    )
    cpdef put_delivery(
        self,
        int channel,
        bytes consumer_tag,
        unsigned long long delivery_tag,
        bint redelivered,
        bytes address,
        bytes header,
        bytes body,
    )
    cdef _put_body(self, int channel, bytes body)
    @cython.locals(at="unsigned char *")
    cdef drop(self, Py_ssize_t count)
    cpdef list take(self)
    cdef _release(self)
    @cython.locals(at="unsigned char *")
    cdef _seal(self)
    @cython.locals(size=Py_ssize_t)
    cdef _append(self, bytes frames)
    @cython.locals(at="unsigned char *")
    cdef unsigned char *_reserve(self, Py_ssize_t size) except NULL
