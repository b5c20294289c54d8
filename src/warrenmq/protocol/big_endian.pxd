from libc.string cimport memcpy


cdef inline unsigned int load_u16(const unsigned char *data, Py_ssize_t offset) noexcept nogil:
    return <unsigned int>data[offset] << 8 | data[offset + 1]


cdef inline unsigned int load_u32(const unsigned char *data, Py_ssize_t offset) noexcept nogil:
    return (
        <unsigned int>data[offset] << 24
        | <unsigned int>data[offset + 1] << 16
        | <unsigned int>data[offset + 2] << 8
        | data[offset + 3]
    )


cdef inline unsigned long long load_u64(const unsigned char *data, Py_ssize_t offset) noexcept nogil:
    return <unsigned long long>load_u32(data, offset) << 32 | load_u32(data, offset + 4)


cdef inline unsigned char *store_u32(unsigned char *at, unsigned int value) noexcept nogil:
    at[0] = value >> 24 & 255
    at[1] = value >> 16 & 255
    at[2] = value >> 8 & 255
    at[3] = value & 255
    return at + 4


cdef inline unsigned char *store_u64(unsigned char *at, unsigned long long value) noexcept nogil:
    return store_u32(store_u32(at, <unsigned int>(value >> 32)), <unsigned int>value)


cdef inline unsigned char *store_frame_head(
    unsigned char *at, int frame_type, int channel, Py_ssize_t size
) noexcept nogil:
    at[0] = frame_type
    at[1] = channel >> 8
    at[2] = channel & 255
    return store_u32(at + 3, <unsigned int>size)


cdef inline unsigned char *store_bytes(unsigned char *at, bytes data, Py_ssize_t size) noexcept:
    memcpy(at, <const unsigned char *>data, size)
    return at + size
