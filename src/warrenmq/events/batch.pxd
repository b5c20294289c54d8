cimport cython

from warrenmq.events cimport fields, ids, memory
from warrenmq.events.fields cimport Offsets
from warrenmq.events.memory cimport Bytes, ConstBytes

cdef int _SEEN_MESSAGES
cdef int _NODE_BITS
cdef int _GROUP_BITS
cdef int _SEEN_GROUPS
cdef int _MESSAGE_ID_KEY
cdef int _CORRELATION_ID_KEY
cdef int _TRACE_ID_KEY


@cython.final
cdef class EventBatch:
    cdef bytes _buffer
    cdef ConstBytes _data
    cdef list _names
    cdef dict _numbers
    cdef bint _has_ids
    cdef Py_ssize_t _columns
    cdef Offsets _validity
    cdef Offsets _values
    cdef Offsets _texts
    cdef Offsets _text_sizes
    cdef readonly Py_ssize_t count

    cpdef event(self, Py_ssize_t row)
    @cython.locals(start=Py_ssize_t)
    cdef _text(self, int column, Py_ssize_t row)
    cdef _name(self, int column, Py_ssize_t row)
    cdef _long(self, int column, Py_ssize_t row)
    cdef _int(self, int column, Py_ssize_t row)
    @cython.locals(kept=Bytes, row=Py_ssize_t, value="long long")
    cdef _keep_between(self, bytearray marks, int column, long long min_value, long long max_value)
    @cython.locals(kept=Bytes, row=Py_ssize_t)
    cdef _keep_name(self, bytearray marks, int column, int number)
    @cython.locals(kept=Bytes, by_code=ConstBytes, row=Py_ssize_t)
    cdef _keep_kinds(self, bytearray marks, bytes kinds)
    @cython.locals(kept=Bytes, sorted_uids=ConstBytes, size=Py_ssize_t, row=Py_ssize_t)
    cdef _keep_uids(self, bytearray marks, int column, bytes uids)
    @cython.locals(kept=Bytes, wanted=ConstBytes, size=Py_ssize_t, row=Py_ssize_t, start=int)
    cdef _keep_text(self, bytearray marks, int column, bytes text)
    cpdef Py_ssize_t max_keys(self)
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t hash_keys(self, bytearray found) except -1
    @cython.locals(
        rows=Bytes, data=ConstBytes, uids=Py_ssize_t, row=Py_ssize_t, uid="long long", slot=Py_ssize_t,
        previous=Py_ssize_t,
    )
    cdef Py_ssize_t _hash_ids(self, Bytes out, Py_ssize_t size, bytearray seen) except -1
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, other=Py_ssize_t, is_as_long=bint)
    cdef Py_ssize_t _hash_text(
        self, Bytes out, Py_ssize_t size, int column, int space, Py_ssize_t row, Py_ssize_t previous
    ) noexcept nogil
    @cython.locals(marks=Bytes, data=ConstBytes, values=Py_ssize_t, validity=Py_ssize_t, row=Py_ssize_t)
    cdef _mark_names(self, bytearray seen, int column)
    @cython.locals(marks=Bytes, data=ConstBytes, values=Py_ssize_t, at=Py_ssize_t)
    cdef _mark_kinds(self, bytearray seen)
    @cython.locals(lowest="long long", highest="long long", value="long long", row=Py_ssize_t)
    cdef tuple _range(self, int column)
    @cython.locals(start=int, end=int, row=Py_ssize_t)
    cdef bint _has_valid_texts(self, int column) except -1
    @cython.locals(number=int, row=Py_ssize_t)
    cdef bint _has_valid_names(self, int column, Py_ssize_t number_of_names) except -1
    @cython.locals(validity=Py_ssize_t)
    cdef bint _is_valid(self, int column, Py_ssize_t row) noexcept nogil
    cdef long long _i64(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _i32(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _i16(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _byte(self, int column, Py_ssize_t row) noexcept nogil


@cython.locals(size=Py_ssize_t)
cpdef bytearray uid_keys(bytes data, Py_ssize_t at, Py_ssize_t count)
@cython.locals(
    groups=Bytes, last="long long", size=Py_ssize_t, row=Py_ssize_t, uid="long long", group="long long",
    slot=Py_ssize_t,
)
cdef Py_ssize_t _put_uid_keys(ConstBytes data, Py_ssize_t uids, Py_ssize_t count, Bytes out, bytearray seen) except -1
@cython.locals(kept=Bytes, at=Py_ssize_t)
cdef list _marked(bytearray marks, Py_ssize_t limit)
@cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, number="long long")
cdef bint _contains_i64(ConstBytes numbers, Py_ssize_t size, long long wanted) noexcept nogil
