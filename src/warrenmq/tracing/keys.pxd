cimport cython

from warrenmq.events cimport memory
from warrenmq.events.batch cimport EventBatch

ctypedef unsigned long long *Longs
ctypedef unsigned int *Ints
ctypedef Py_ssize_t Offsets[256]


@cython.locals(size=Py_ssize_t)
cpdef keys_of(EventBatch batch)
cpdef sort_keys(bytearray hashes, bytearray numbers)
@cython.locals(own=Longs, own_numbers=Ints, other=Longs, other_numbers=Ints, count=Py_ssize_t, shift=int)
cdef _sort(bytearray hashes, bytearray numbers, bytearray spare_hashes, bytearray spare_numbers)
@cython.locals(offsets=Offsets, at=Py_ssize_t, end=Py_ssize_t, byte=int, target=Py_ssize_t)
cdef void _pass(
    Longs from_hashes, Ints from_numbers, Longs to_hashes, Ints to_numbers, Py_ssize_t count, int shift
) noexcept nogil
@cython.locals(kept=Longs, count=Py_ssize_t, target=Py_ssize_t, at=Py_ssize_t)
cdef Py_ssize_t _drop_equal(bytearray hashes) except -1
cdef Longs _longs(bytearray data) except NULL
cdef Ints _ints(bytearray data) except NULL
