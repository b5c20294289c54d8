cimport cython

from warrenmq.core.message cimport QueuedMessage
from warrenmq.core.turn cimport Turn


@cython.final
cdef class Ledger:
    cdef readonly object last_served
    cdef public unsigned long long last_tag
    cdef public unsigned long long oldest
    cdef public Py_ssize_t prefetch
    cdef public Py_ssize_t outstanding
    cdef readonly dict unacked
    cdef readonly dict parked
    cdef readonly Turn turn
    cdef public long long note_from_ms
    cdef public object watch

    cpdef unsigned long long next_tag(self) noexcept
    cpdef unsigned long long add(self, QueuedMessage entry) except 0
    cpdef bint is_full(self) noexcept
    cpdef QueuedMessage take(self, unsigned long long tag)
    @cython.locals(entry=QueuedMessage)
    cpdef list take_known(self, unsigned long long tag, bint multiple)
    @cython.locals(known="unsigned long long", entry=QueuedMessage, unacked=dict)
    cpdef list take_up_to(self, unsigned long long tag)
    @cython.locals(known="unsigned long long", entry=QueuedMessage, unacked=dict, taken=list)
    cpdef list take_entries_up_to(self, unsigned long long tag)
    cpdef put_back(self, list deliveries)
    cpdef list take_all(self)
