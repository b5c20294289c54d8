cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.consumer cimport Consumer, ConsumerRing
from warrenmq.core.dead_letter cimport DeadLetters
from warrenmq.core.dropping_queue cimport DroppingQueue
from warrenmq.core.expiry cimport MessageExpiry
from warrenmq.core.filtered cimport FilteredDispatch
from warrenmq.core.length_limit cimport LengthLimit
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.queue cimport Queue


cdef int NOTHING
cdef int QUEUED
cdef int DELIVERED
cdef int DROPPED
cdef int _REQUEUED
cdef int _DROPPED
cdef int _DUPLICATE
cdef int _EXPIRED
cdef int _MAXLEN
cdef int _REJECTED
cdef int _DELIVERY_LIMIT
cdef int REJECTED


cdef class ClassicQueue(DroppingQueue):
    cdef readonly ConsumerRing ring
    cdef readonly Consumer exclusive_consumer
    cdef readonly long long queued
    cdef readonly bint has_rules
    cdef readonly object single_active
    cdef readonly FilteredDispatch filters

    cpdef int enqueue(self, Message message) except -1
    @cython.locals(
        backlog=Backlog, limit=LengthLimit, part=Backlog, now_ms="long long", expires_ms="long long", outcome=int,
        expiry=MessageExpiry,
    )
    cdef int _enqueue_by_rules(self, Message message) except -1
    @cython.locals(entry=QueuedMessage)
    cdef _expire_at_once(self, Backlog part, long long position)
    cdef int _reject_publish(self, Message message, LengthLimit limit) except -1
    @cython.locals(
        backlog=Backlog, consumer=Consumer, entry=QueuedMessage, position="long long", durability_level=int, is_first=bint
    )
    cdef int _enqueue(self, Message message, long long expires_ms) except -1
    cdef MessageExpiry _expiry_of(self, Backlog part)
    cdef int _drop_duplicate(self, Message message) except -1
    cpdef bint needs_page(self)
    @cython.locals(backlog=Backlog, consumer=Consumer, entry=QueuedMessage)
    cpdef dispatch(self)
    @cython.locals(entry=QueuedMessage)
    cdef _drop_expired(self)
    cdef bint _is_held(self) except -1
    @cython.locals(entry=QueuedMessage)
    cpdef QueuedMessage get(self)
    cpdef deliver(self, QueuedMessage entry, Consumer consumer)
    @cython.locals(message=Message)
    cdef _deliver(self, QueuedMessage entry, Consumer consumer)
    cpdef reject(self, QueuedMessage entry, object actor)
    @cython.locals(entry=QueuedMessage)
    cdef _check_requeued(self, list entries)
    cpdef settle_sent(self, QueuedMessage entry)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cdef _requeue(self, list entries, object actor, int reason)
    @cython.locals(entry=QueuedMessage, backlog=Backlog, part=Backlog)
    cpdef enqueue_again(self, Message message, int attempts)
    @cython.locals(entry=QueuedMessage, held=list)
    cpdef requeue(self, list entries, object actor=*, int reason=*)
    cpdef wake(self, Consumer consumer)
    cpdef make_due(self)
    cpdef Message as_delivered(self, QueuedMessage entry)
