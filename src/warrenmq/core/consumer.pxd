cimport cython

from warrenmq.core.consumer_filter cimport ConsumerFilter
from warrenmq.core.ledger cimport Ledger
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport Outbox


@cython.final
cdef class Consumer:
    cdef readonly str tag
    cdef readonly bytes wire_tag
    cdef readonly object channel
    cdef readonly int channel_number
    cdef readonly Ledger ledger
    cdef readonly Outbox outbox
    cdef readonly object queue
    cdef readonly bint no_ack
    cdef readonly bint is_exclusive
    cdef readonly Py_ssize_t prefetch
    cdef readonly long long priority
    cdef readonly dict arguments
    cdef public Py_ssize_t unacked
    cdef public bint is_waiting
    cdef readonly object pace
    cdef readonly object retry
    cdef readonly ConsumerFilter filter

    cpdef bint has_credit(self) except -1
    cpdef bint return_credit(self) except -1
    cpdef deliver_no_ack(self, Message message, bint redelivered)
    cpdef deliver(self, QueuedMessage entry, Message message)


@cython.final
cdef class ConsumerRing:
    cdef readonly list priorities
    cdef readonly list levels

    cpdef add(self, Consumer consumer)
    cpdef remove(self, Consumer consumer)
    cpdef list waiting(self)
    @cython.locals(level=object)
    cpdef move_back(self, Consumer consumer)
    @cython.locals(levels=list, consumer=Consumer)
    cpdef Consumer next_ready(self, Message message)


cpdef wake_parked(dict parked)
cpdef wake_channel(Ledger ledger)
