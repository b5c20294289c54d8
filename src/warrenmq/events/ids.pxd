cimport cython

cdef long long _EPOCH_MS, _END_MS
cdef int _NODE_BITS, _LOW_BITS
cdef unsigned long long _MASK, _FNV_BASIS, _FNV_PRIME, _MIX_1, _MIX_2


@cython.final
cdef class UidClock:
    cdef readonly long long last
    cdef readonly int node

    cpdef long long next(self, long long now_us) noexcept


cpdef unsigned long long key_hash(unsigned long long space, bytes data)
cdef unsigned long long hash_bytes(
    unsigned long long space, const unsigned char *data, Py_ssize_t start, Py_ssize_t end
) noexcept nogil
