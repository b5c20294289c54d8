cimport cython

from warrenmq.core.exchange cimport Route
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as, make_message
from warrenmq.core.publish_rules cimport wants_report
from warrenmq.core.queue cimport Queue
from warrenmq.core.stats cimport Revision, Stats
from warrenmq.core.turn cimport Turn

cdef int QUEUED
cdef int DELIVERED
cdef int DROPPED
cdef int REJECTED
cdef int UNROUTED


@cython.final
cdef class DeadLetters:
    cdef _Template _cached
    cdef str _exchange
    cdef list _held
    cdef str _key
    cdef list _pending
    cdef object _queue
    cdef Stats _stats
    cdef object _timer
    cdef Revision _topology
    cdef Turn _turn
    cdef object _vhost
    cdef readonly bint is_at_least_once

    cpdef publish(self, Message message, int reason, int attempts)
    cpdef publish_or_hold(self, QueuedMessage entry, int reason, bint is_retry)
    @cython.locals(pending=list, turn=Turn, was_settling=bint, letters=DeadLetters, attempts=int)
    cdef _publish_pending(self)
    @cython.locals(outcome=int, is_settled=bint)
    cdef send(self, Message message, int reason, int attempts, QueuedMessage entry, bint is_retry)
    @cython.locals(letter=_Template, route=Route, dead=Message)
    cdef int _send(self, Message message, int reason, bint is_retry) except -1
    cdef Route _route_of(self, _Template letter)
    @cython.locals(outcome=int)
    cdef int _route(self, Message message, Message dead, Route route, _Template letter, bint is_retry) except -1
    @cython.locals(outcome=int, queue=Queue)
    cdef int _enqueue(self, Message message, list queues, list deaths) except -1
    @cython.locals(second="long long", cached=_Template)
    cdef _Template _template_of(self, Message message, int reason)


@cython.final
cdef class _Template:
    cdef Message _message
    cdef int _reason
    cdef long long _second
    cdef list deaths
    cdef list extra_keys
    cdef bytes header
    cdef Route route
    cdef str routing_key
    cdef long long topology

    @cython.locals(source=Message)
    cdef bint fits(self, Message message, int reason, long long second) except -1


cpdef bint is_cycle(str queue, list deaths) except -1
