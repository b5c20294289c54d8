# The C form of memory.py: inlined into the compiled modules that cimport it.
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy, memset

ctypedef unsigned char *Bytes
ctypedef const unsigned char *ConstBytes
ctypedef int *Ints
ctypedef short *Shorts


cdef inline long long load_i64(ConstBytes data, Py_ssize_t at) noexcept nogil:
    cdef long long value
    memcpy(&value, data + at, 8)
    return value


cdef inline int load_i32(ConstBytes data, Py_ssize_t at) noexcept nogil:
    cdef int value
    memcpy(&value, data + at, 4)
    return value


cdef inline long long load_u32(ConstBytes data, Py_ssize_t at) noexcept nogil:  # so that inferred types are signed
    cdef unsigned int value
    memcpy(&value, data + at, 4)
    return value


cdef inline short load_i16(ConstBytes data, Py_ssize_t at) noexcept nogil:
    cdef short value
    memcpy(&value, data + at, 2)
    return value


cdef inline void store_64(Bytes out, Py_ssize_t at, unsigned long long value) noexcept nogil:
    memcpy(out + at, &value, 8)


cdef inline void store_32(Bytes out, Py_ssize_t at, unsigned int value) noexcept nogil:
    memcpy(out + at, &value, 4)


cdef inline void copy(Bytes out, Py_ssize_t at, ConstBytes source, Py_ssize_t source_at, Py_ssize_t size) noexcept nogil:
    memcpy(out + at, source + source_at, size)


cdef inline void copy_array(Bytes out, Py_ssize_t at, const void *source, Py_ssize_t size) noexcept nogil:
    memcpy(out + at, source, size)


cdef inline void clear(Bytes out, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    memset(out + at, 0, size)


cdef inline bint equal(ConstBytes data, Py_ssize_t at, ConstBytes other, Py_ssize_t other_at, Py_ssize_t size) noexcept nogil:
    return memcmp(data + at, other + other_at, size) == 0


cdef inline bint is_ascii(bytes data) noexcept:
    cdef ConstBytes start = data
    cdef int found = 0
    cdef Py_ssize_t at
    for at in range(len(data)):
        found |= start[at]
    return found < 0x80


cdef inline size_t address_of(object thing) noexcept:
    return <size_t><void *>thing


cdef inline bytes new_bytes(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline bytes finished(bytes data):
    return data


cdef inline ConstBytes pointer(object data) except NULL:
    return <bytearray>data if isinstance(data, bytearray) else <bytes>data


cdef inline Bytes writable(object data) except NULL:
    if isinstance(data, bytearray):
        return <bytearray>data
    return <Bytes><char *><bytes>data


cdef inline Bytes bytes_at(Bytes data, Py_ssize_t at) noexcept nogil:
    return data + at


cdef inline Ints ints_at(Bytes data, Py_ssize_t at) noexcept nogil:
    return <Ints>(data + at)


cdef inline Shorts shorts_at(Bytes data, Py_ssize_t at) noexcept nogil:
    return <Shorts>(data + at)
