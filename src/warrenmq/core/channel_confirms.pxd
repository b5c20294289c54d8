cimport cython

from warrenmq.core.message cimport Message
from warrenmq.core.ports cimport CommitLog, EventSink, Outbox
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn


cdef int NOTHING
cdef int WRITTEN
cdef int SYNCED
cdef int _CONFIRMED


cdef class ConfirmingChannel:
    cdef readonly object awaiting_epoch
    cdef readonly object broker
    cdef readonly unsigned long long confirmed_tag
    cdef readonly EventSink events
    cdef readonly bint is_confirming
    cdef readonly bint is_in_turn
    cdef readonly bint is_open
    cdef readonly CommitLog log
    cdef readonly long long nacked
    cdef readonly int number
    cdef readonly Outbox outbox
    cdef readonly unsigned long long published_tag
    cdef readonly list rejected
    cdef readonly Stats stats
    cdef readonly list traced
    cdef readonly list traced_tags
    cdef readonly Turn turn
    cdef readonly int turn_level

    cpdef await_confirm(self, Message message)
    cpdef add_unconfirmed(self)
    @cython.locals(level=int)
    cpdef end_turn(self, unsigned long long epoch)
    cdef _await_epoch(self, unsigned long long epoch, int level)
    @cython.locals(epoch="unsigned long long", level=int, tag="unsigned long long", up_to="unsigned long long")
    cpdef bint confirm_epochs(self, unsigned long long written, unsigned long long durable) except -1
    @cython.locals(first="unsigned long long")
    cdef _confirm_up_to(self, unsigned long long tag)
    cdef _confirm(self, unsigned long long first, unsigned long long last)
    @cython.locals(traced=list, tags=list, count=Py_ssize_t, number="unsigned long long", message=Message)
    cdef _end_traced(self, unsigned long long tag, bint is_confirmed)
