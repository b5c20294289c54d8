cimport cython

ctypedef size_t Places[777]  # three times _PLACES
ctypedef Py_ssize_t Numbers[259]

cdef int _PROBES
cdef int _PLACES
cdef size_t _MIX
cdef size_t _64_BITS


@cython.final
cdef class SceneFinder:
    cdef Places _places
    cdef Numbers _numbers
    cdef Numbers _befores
    cdef list _held
    cdef readonly Py_ssize_t before

    @cython.locals(
        first=size_t, second=size_t, third=size_t, slot=Py_ssize_t, probe=Py_ssize_t, at=Py_ssize_t
    )
    cpdef Py_ssize_t find(self, bytes address, object one, object other) noexcept
    @cython.locals(first=size_t, second=size_t, third=size_t, slot=Py_ssize_t, at=Py_ssize_t)
    cpdef note(self, Py_ssize_t scene, Py_ssize_t before, bytes address, object one, object other)
    @cython.locals(probe=Py_ssize_t)
    cdef Py_ssize_t _free_slot(self, Py_ssize_t slot, Py_ssize_t scene) noexcept
    @cython.locals(at=Py_ssize_t)
    cpdef clear(self)


@cython.locals(mixed=size_t)
cdef Py_ssize_t _slot_of(size_t first, size_t second, size_t third) noexcept
cdef size_t _place_of(object thing) noexcept
