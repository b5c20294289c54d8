cimport cython

from warrenmq.events cimport memory

ctypedef size_t Keys[777]  # three times _ENTRIES
ctypedef Py_ssize_t Numbers[259]

cdef int _PROBES
cdef int _ENTRIES
cdef size_t _MIX
cdef size_t _64_BITS


@cython.final
cdef class ContextCache:
    cdef Keys _keys
    cdef Numbers _contexts
    cdef Numbers _enqueue_contexts
    cdef list _references
    cdef readonly Py_ssize_t enqueue_context

    cpdef Py_ssize_t find(self, bytes address, object owner, object consumer) noexcept
    cpdef add(self, Py_ssize_t context, Py_ssize_t enqueue_context, bytes address, object owner, object consumer)
    cdef Py_ssize_t _free_slot(self, Py_ssize_t slot, Py_ssize_t context) noexcept
    cpdef clear(self)


cdef Py_ssize_t _slot_of(size_t first, size_t second, size_t third) noexcept
