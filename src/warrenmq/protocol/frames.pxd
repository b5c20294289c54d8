cimport cython

# C-level copies of the constants: a module global of Python would be looked up for every frame.
cdef int _METHOD
cdef int _HEADER
cdef int _BODY
cdef int _HEARTBEAT
cdef int _END
cdef int _BASIC_CLASS
cdef unsigned int _BASIC_PUBLISH
cdef unsigned int _BASIC_RETURN
cdef unsigned int _BASIC_DELIVER
cdef unsigned int _BASIC_GET_OK
cdef unsigned int _BASIC_ACK
cdef Py_ssize_t _HEADER_MIN_SIZE
cdef Py_ssize_t _FRAME_OVERHEAD
cdef Py_ssize_t _ACK_SIZE
cdef unsigned int _MAX_CONTENT_METHOD_SIZE
cdef Py_ssize_t _PENDING_OVERHEAD


cdef class FrameHandler:
    cpdef on_method(self, int channel, bytes payload)
    cpdef on_ack(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef bint on_content_header(self, int channel, unsigned long long body_size) except -1
    cpdef bint on_buffered(self, int channel, Py_ssize_t size) except -1
    cpdef on_released(self, Py_ssize_t size)
    cpdef on_content(self, int channel, bytes method, bytes header, bytes body)
    cpdef on_heartbeat(self)


@cython.final
cdef class PendingContent:
    cdef bytes method
    cdef bytes header
    cdef bytearray body
    cdef unsigned long long missing
    cdef Py_ssize_t size


@cython.final
cdef class FrameReader:
    cdef readonly FrameHandler handler
    cdef public Py_ssize_t frame_max
    cdef readonly dict pending
    cdef readonly set ignored_channels
    cdef public bint accepts_content
    cdef readonly bint is_closing
    cdef public bint is_paused
    cdef readonly Py_ssize_t resume_at

    @cython.locals(
        data="const unsigned char *",
        position=Py_ssize_t,
        frame_type=int,
        channel=int,
        size="unsigned int",
        start=Py_ssize_t,
        stop=Py_ssize_t,
        index="unsigned int",
        after=Py_ssize_t,
    )
    cpdef Py_ssize_t receive(self, buffer, Py_ssize_t end) except -1
    @cython.locals(
        header_type=int,
        header_channel=int,
        class_and_weight="unsigned int",
        size="unsigned int",
        start=Py_ssize_t,
        stop=Py_ssize_t,
        body_size="unsigned long long",
        body_position=Py_ssize_t,
        body_start=Py_ssize_t,
        body_stop=Py_ssize_t,
        pending=PendingContent,
    )
    cdef Py_ssize_t _read_content_at_once(
        self, const unsigned char *data, Py_ssize_t begin, Py_ssize_t position, Py_ssize_t end, int channel, bytes method
    ) except -1
    cdef bint _buffer(self, int channel, PendingContent pending, Py_ssize_t size) except -1
    @cython.locals(pending=PendingContent)
    cdef _receive_other(self, int frame_type, int channel, bytes payload)
    cdef _receive_header(self, int channel, PendingContent pending, bytes payload)
    cdef _receive_body(self, int channel, PendingContent pending, bytes payload)
    cdef _complete(self, int channel, PendingContent pending, bytes body)
    @cython.locals(pending=PendingContent)
    cdef _refuse_in_content(self, int channel)
    cpdef ignore_channel(self, int channel)
    cpdef resume_channel(self, int channel)
    cpdef close(self)
    @cython.locals(pending=PendingContent)
    cdef _drop(self, int channel)
    cdef bint _is_ignored(self, int frame_type, int channel, bytes payload) except -1


@cython.locals(value="unsigned long long", index=Py_ssize_t)
cdef unsigned long long _read_u64(const unsigned char *data, Py_ssize_t at) noexcept
@cython.locals(value="unsigned int", index=Py_ssize_t)
cdef unsigned int _read_u32(const unsigned char *data, Py_ssize_t at) noexcept
cdef bint _is_frame(
    const unsigned char *data, Py_ssize_t at, int frame_type, int channel, unsigned long long size
) noexcept
