cimport cython

from warrenmq.events cimport fields, ids, memory
from warrenmq.events.fields cimport Offsets
from warrenmq.events.memory cimport Bytes, ConstBytes

cdef bytes _IS_TEXT, _WIDTHS
cdef int _SEEN_MESSAGES, _SEEN_GROUPS, _NODE_BITS, _GROUP_BITS, _MESSAGE_ID_KEY, _CORRELATION_ID_KEY, _TRACE_ID_KEY


@cython.final
cdef class EventBatch:
    cdef bytes _buffer
    cdef ConstBytes _data
    cdef list _names
    cdef dict _numbers
    cdef bint _has_ids
    cdef Py_ssize_t _columns
    cdef Offsets _validity, _values, _texts
    cdef readonly Py_ssize_t count

    cpdef event(self, Py_ssize_t row)
    @cython.locals(number=int)
    cpdef list used_names(self, str column)
    cpdef list used_kinds(self)
    cpdef tuple time_range(self)
    @cython.locals(number=int)
    cdef _set_offsets(self, body, Py_ssize_t columns, bint is_trusted)
    cdef _text(self, int column, Py_ssize_t row)
    cdef _name(self, int column, Py_ssize_t row)
    cdef _long(self, int column, Py_ssize_t row)
    cdef _int(self, int column, Py_ssize_t row)
    cdef _keep_between(self, bytearray marks, int column, long long min_value, long long max_value)
    cdef _keep_name(self, bytearray marks, int column, int number)
    cdef _keep_kinds(self, bytearray marks, bytes kinds)
    cdef _keep_uids(self, bytearray marks, int column, bytes uids)
    cdef _keep_text(self, bytearray marks, int column, bytes text)
    cpdef Py_ssize_t max_keys(self)
    cpdef Py_ssize_t hash_keys(self, bytearray found) except -1
    cdef Py_ssize_t _hash_ids(self, Bytes out, Py_ssize_t size, bytearray seen) except -1
    cdef Py_ssize_t _hash_text(
        self, Bytes out, Py_ssize_t size, int column, int space, Py_ssize_t row, Py_ssize_t previous
    ) noexcept nogil
    cdef bint _has_valid_texts(self, int column, Py_ssize_t size) except -1
    cdef bint _has_valid_names(self, int column, Py_ssize_t number_of_names) except -1
    cdef bint _is_valid(self, int column, Py_ssize_t row) noexcept nogil
    cdef long long _i64(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _i32(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _i16(self, int column, Py_ssize_t row) noexcept nogil
    cdef int _byte(self, int column, Py_ssize_t row) noexcept nogil


cpdef bytearray uid_keys(bytes data, Py_ssize_t at, Py_ssize_t count)
cdef Py_ssize_t _put_uid_keys(ConstBytes data, Py_ssize_t uids, Py_ssize_t count, Bytes out, bytearray seen) except -1
cdef list _marked(bytearray marks, Py_ssize_t limit)
cdef bint _contains_i64(ConstBytes numbers, Py_ssize_t size, long long wanted) noexcept nogil
