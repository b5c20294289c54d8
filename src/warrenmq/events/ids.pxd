cimport cython

cdef long long _EPOCH_MS
cdef long long _END_MS
cdef int _NODE_BITS
cdef int _LOW_BITS
cdef unsigned long long _MASK
cdef unsigned long long _FNV_BASIS
cdef unsigned long long _FNV_PRIME
cdef unsigned long long _MIX_1
cdef unsigned long long _MIX_2


@cython.final
cdef class UidClock:
    cdef readonly long long last
    cdef readonly int node

    @cython.locals(counted="long long", now_ms="long long")
    cpdef long long next(self, long long now_us) noexcept


cpdef unsigned long long key_hash(unsigned long long space, bytes data)
@cython.locals(value="unsigned long long", at=Py_ssize_t)
cdef unsigned long long hash_bytes(
    unsigned long long space, const unsigned char *data, Py_ssize_t start, Py_ssize_t end
) noexcept nogil
