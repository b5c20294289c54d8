cimport cython

ctypedef const unsigned char *Octets
ctypedef unsigned char *Changeable
ctypedef Py_ssize_t Places[22]

cdef int _MET
cdef int _UID_STEP
cdef int _GROUP_BITS
cdef int _MET_GROUPS
cdef int _MESSAGE_ID_KEY
cdef int _CORRELATION_ID_KEY
cdef int _TRACE_ID_KEY
cdef int _TIME
cdef int _KIND
cdef int _UID
cdef int _MESSAGE_ID
cdef int _PUBLISH_TIME
cdef int _ENQUEUE_TIME
cdef int _VHOST
cdef int _EXCHANGE
cdef int _ROUTING_KEY
cdef int _QUEUE
cdef int _CONSUMER
cdef int _CONNECTION
cdef int _CHANNEL
cdef int _SIZE
cdef int _ATTEMPT
cdef int _REASON
cdef int _CORRELATION_ID
cdef int _TRACE_ID
cdef int _SPAN_ID
cdef int _SOURCE_UID
cdef int _DEPTH
cdef int _PRIORITY


@cython.final
cdef class EventBatch:
    cdef bytes _held
    cdef Octets _data
    cdef list _names
    cdef dict _numbers
    cdef bint _has_ids
    cdef bint _has_priorities
    cdef Places _flags
    cdef Places _values
    cdef Places _texts
    cdef Places _text_sizes
    cdef readonly Py_ssize_t count

    cpdef event(self, Py_ssize_t row)
    @cython.locals(start=Py_ssize_t)
    cdef _text(self, int column, Py_ssize_t row)
    cdef _name(self, int column, Py_ssize_t row)
    cdef _long(self, int column, Py_ssize_t row)
    cdef _int(self, int column, Py_ssize_t row)
    @cython.locals(kept=Changeable, row=Py_ssize_t, value="long long")
    cdef _keep_between(self, bytearray marks, int column, long long least, long long greatest)
    @cython.locals(kept=Changeable, row=Py_ssize_t)
    cdef _keep_name(self, bytearray marks, int column, int number)
    @cython.locals(kept=Changeable, by_code=Octets, row=Py_ssize_t)
    cdef _keep_kinds(self, bytearray marks, bytes wanted)
    @cython.locals(kept=Changeable, uids=Octets, size=Py_ssize_t, row=Py_ssize_t)
    cdef _keep_uids(self, bytearray marks, int column, bytes wanted)
    @cython.locals(kept=Changeable, text=Octets, size=Py_ssize_t, row=Py_ssize_t, start=int)
    cdef _keep_text(self, bytearray marks, int column, bytes wanted)
    cpdef Py_ssize_t max_keys(self)
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t hash_keys(self, bytearray found) except -1
    @cython.locals(
        rows=Changeable, data=Octets, uids=Py_ssize_t, row=Py_ssize_t, uid="long long", place=Py_ssize_t,
        before=Py_ssize_t,
    )
    cdef Py_ssize_t _hash_ids(self, Changeable out, Py_ssize_t size, bytearray met) except -1
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, known=Py_ssize_t, is_as_long=bint)
    cdef Py_ssize_t _hash_text(
        self, Changeable out, Py_ssize_t size, int column, int space, Py_ssize_t row, Py_ssize_t before
    ) noexcept nogil
    @cython.locals(marks=Changeable, data=Octets, values=Py_ssize_t, flags=Py_ssize_t, row=Py_ssize_t)
    cdef _mark_names(self, bytearray seen, int column)
    @cython.locals(marks=Changeable, data=Octets, values=Py_ssize_t, at=Py_ssize_t)
    cdef _mark_kinds(self, bytearray seen)
    @cython.locals(least="long long", greatest="long long", value="long long", row=Py_ssize_t)
    cdef tuple _range(self, int column)
    @cython.locals(start=int, end=int, row=Py_ssize_t)
    cdef bint _has_good_texts(self, int column) except -1
    @cython.locals(number=int, row=Py_ssize_t)
    cdef bint _has_good_names(self, int column, Py_ssize_t number_of_names) except -1
    @cython.locals(flags=Py_ssize_t)
    cdef bint _is_there(self, int column, Py_ssize_t row) noexcept nogil
    cdef long long _i64(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _i32(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _i16(self, int column, Py_ssize_t row) noexcept nogil
    @cython.locals(octet=int)
    cdef int _byte(self, int column, Py_ssize_t row) noexcept nogil


@cython.locals(size=Py_ssize_t)
cpdef bytearray uid_keys(bytes octets, Py_ssize_t at, Py_ssize_t count)
@cython.locals(
    groups=Changeable, last="long long", size=Py_ssize_t, row=Py_ssize_t, uid="long long", group="long long",
    place=Py_ssize_t,
)
cdef Py_ssize_t _put_uid_keys(Octets data, Py_ssize_t uids, Py_ssize_t count, Changeable out, bytearray met) except -1
@cython.locals(kept=Changeable, at=Py_ssize_t)
cdef list _marked(bytearray marks, Py_ssize_t most)
@cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, number="long long")
cdef bint _has_i64(Octets numbers, Py_ssize_t size, long long wanted) noexcept nogil
cdef Octets _pointer_to(bytes data) except NULL
cdef Changeable _changeable(bytearray data) except NULL
@cython.locals(value="long long")
cdef long long _load_i64(Octets data, Py_ssize_t at) noexcept nogil
@cython.locals(value=int)
cdef int _load_i32(Octets data, Py_ssize_t at) noexcept nogil
@cython.locals(value=short)
cdef int _load_i16(Octets data, Py_ssize_t at) noexcept nogil
cdef void _store_u64(Changeable out, Py_ssize_t at, unsigned long long value) noexcept nogil
cdef void _store_i32(Changeable out, Py_ssize_t at, int value) noexcept nogil
cdef bint _is_text(Octets data, Py_ssize_t at, Octets text, Py_ssize_t size) noexcept nogil
cdef bint _is_repeated(Octets data, Py_ssize_t at, Py_ssize_t again_at, Py_ssize_t size) noexcept nogil
