cimport cython

from warrenmq.protocol cimport big_endian

cdef int _ARRAY
cdef int _UNSIGNED_BYTE
cdef int _DECIMAL
cdef int _TABLE
cdef int _INT
cdef int _LONG_UPPER
cdef int _STRING
cdef int _TIMESTAMP
cdef int _VOID
cdef int _BYTE
cdef int _DOUBLE
cdef int _FLOAT
cdef int _UNSIGNED_INT
cdef int _LONG
cdef int _SHORT
cdef int _BOOLEAN
cdef int _UNSIGNED_SHORT
cdef int _BYTES

cdef unsigned long long _LAST_DATETIME

cdef object _unpack_float
cdef object _unpack_double
cdef object _pack_length
cdef object _pack_int
cdef object _pack_long
cdef object _pack_double
cdef object _pack_decimal
cdef object _pack_tagged_length
cdef object _pack_timestamp


@cython.final
cdef class ValueReader:
    cdef readonly bytes data
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t end

    @cython.locals(position=Py_ssize_t)
    cpdef int read_octet(self) except -1
    @cython.locals(data=bytes, position=Py_ssize_t)
    cpdef int read_short(self) except -1
    @cython.locals(data=bytes, position=Py_ssize_t)
    cpdef long long read_long(self)  # no "except -1": Cython 3.3.1 writes that for long long as -1LLLL
    @cython.locals(high=cython.ulonglong)
    cpdef unsigned long long read_longlong(self)
    @cython.locals(start=Py_ssize_t)
    cpdef bytes read_bytes(self, Py_ssize_t count)
    @cython.locals(start=Py_ssize_t)
    cpdef str read_shortstr(self)
    @cython.locals(start=Py_ssize_t)
    cpdef str read_label(self)
    cpdef bytes read_longstr(self)
    @cython.locals(seconds=cython.ulonglong)
    cpdef object read_timestamp(self)
    cpdef dict read_table(self)
    cpdef object read_value(self)
    cpdef object skip_shortstr(self)
    cpdef object skip_table(self)
    cpdef object skip_value(self)

    cdef inline int _require(self, Py_ssize_t count) except -1
    @cython.locals(start=Py_ssize_t)
    cdef inline Py_ssize_t _advance(self, Py_ssize_t count) except -1
    @cython.locals(length=Py_ssize_t)
    cdef Py_ssize_t _enter(self, int depth) except -1
    @cython.locals(outer=Py_ssize_t, table=dict, key=str)
    cdef dict _read_table(self, int depth)
    @cython.locals(outer=Py_ssize_t, array=list)
    cdef list _read_array(self, int depth)
    @cython.locals(kind=int, start=Py_ssize_t, number=cython.longlong)
    cdef object _read_value(self, int depth)
    @cython.locals(scale=int, number=cython.longlong)
    cdef object _read_rare_value(self, int kind)
    @cython.locals(outer=Py_ssize_t)
    cdef int _skip_table(self, int depth) except -1
    @cython.locals(outer=Py_ssize_t)
    cdef int _skip_array(self, int depth) except -1
    @cython.locals(kind=int)
    cdef int _skip_value(self, int depth) except -1


cdef int _fixed_width(int kind) except -1

@cython.locals(reader=ValueReader)
cpdef tuple decode_table(bytes data, Py_ssize_t offset, Py_ssize_t end)
@cython.locals(reader=ValueReader)
cpdef tuple decode_value(bytes data, Py_ssize_t offset, Py_ssize_t end)
@cython.locals(reader=ValueReader)
cpdef tuple decode_shortstr(bytes data, Py_ssize_t offset, Py_ssize_t end)
@cython.locals(reader=ValueReader)
cpdef tuple decode_longstr(bytes data, Py_ssize_t offset, Py_ssize_t end)
@cython.locals(reader=ValueReader)
cpdef tuple decode_timestamp(bytes data, Py_ssize_t offset, Py_ssize_t end)

@cython.locals(out=bytearray)
cpdef bytes encode_table(object table)
@cython.locals(out=bytearray)
cpdef bytes encode_value(object value)
@cython.locals(data=bytes)
cpdef bytes encode_shortstr(str text)
cpdef bytes encode_longstr(bytes data)
cpdef bytes encode_timestamp(object moment)

cdef bytes _encode_text(str text)
@cython.locals(data=bytes)
cdef bytes _encode_short(str text)
@cython.locals(start=Py_ssize_t, data=bytes)
cdef int _write_table(bytearray out, object table, int depth) except -1
@cython.locals(start=Py_ssize_t)
cdef int _write_array(bytearray out, object array, int depth) except -1
cdef Py_ssize_t _open_length(bytearray out, int depth) except -1
cdef int _write_value(bytearray out, object value, int depth) except -1
cdef int _write_bytes(bytearray out, int kind, object data) except -1
cdef int _write_int(bytearray out, object value) except -1
cdef object _write_decimal(bytearray out, object value)
