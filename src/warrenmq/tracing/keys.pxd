cimport cython

from warrenmq.events.batch cimport EventBatch

ctypedef unsigned char *Bytes
ctypedef unsigned long long *Longs
ctypedef unsigned int *Ints
ctypedef Py_ssize_t Offsets[256]


@cython.locals(size=Py_ssize_t)
cpdef keys_of(EventBatch batch)
cpdef sort_keys(bytearray hashes, bytearray numbers)
@cython.locals(
    from_hashes=Longs, from_numbers=Ints, to_hashes=Longs, to_numbers=Ints, count=Py_ssize_t, shift=int,
    differing="unsigned long long", is_swapped=bint,
)
cdef _sort(bytearray hashes, bytearray numbers, bytearray spare_hashes, bytearray spare_numbers)
@cython.locals(found="unsigned long long", at=Py_ssize_t)
cdef unsigned long long _differing(Longs hashes, Py_ssize_t count) noexcept nogil
@cython.locals(offsets=Offsets, at=Py_ssize_t, end=Py_ssize_t, byte=int, target=Py_ssize_t)
cdef void _pass(
    Longs from_hashes, Ints from_numbers, Longs to_hashes, Ints to_numbers, Py_ssize_t count, int shift
) noexcept nogil
@cython.locals(kept=Longs, count=Py_ssize_t, at=Py_ssize_t)
cdef bint _is_sorted(bytearray hashes) except -1
@cython.locals(kept=Longs, count=Py_ssize_t, target=Py_ssize_t, at=Py_ssize_t)
cdef Py_ssize_t _drop_equal(bytearray hashes) except -1
cdef Longs _longs(bytearray data) except NULL
cdef Ints _ints(bytearray data) except NULL
cdef Bytes _bytes(bytearray data) except NULL
