cimport cython

from warrenmq.core.consumer cimport Consumer, ConsumerRing
from warrenmq.core.line cimport Line
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.ports cimport EventSink, MessageStore, PageSizes
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn


cdef int NOTHING
cdef int QUEUED
cdef int DELIVERED
cdef int DROPPED
cdef int _DELIVERED
cdef int _REQUEUED
cdef int _DROPPED
cdef int _AUTO_ACK
cdef int _DUPLICATE


cdef class Queue:
    cdef readonly str vhost
    cdef readonly str name
    cdef readonly bint is_durable
    cdef readonly bint is_auto_delete
    cdef readonly object owner
    cdef readonly dict arguments
    cdef readonly object options
    cdef readonly Stats stats
    cdef readonly Turn turn
    cdef readonly MessageStore store
    cdef readonly EventSink events
    cdef public bint is_tapped
    cdef readonly Line ready
    cdef readonly ConsumerRing ring
    cdef readonly dict consumers
    cdef readonly Consumer exclusive_consumer
    cdef readonly bint is_deleted
    cdef readonly bint is_due
    cdef readonly Py_ssize_t unacked_count
    cdef readonly long long next_position
    cdef readonly long long restored_position
    cdef readonly long long delivered
    cdef public long long delivered_no_ack
    cdef public long long redelivered
    cdef public long long rejected
    cdef readonly long long requeued
    cdef readonly bint keeps
    cdef public object deduplication
    cdef long long _handed_out
    cdef Py_ssize_t _window_bytes
    cdef Py_ssize_t _tail_bytes
    cdef Py_ssize_t _tail_out_at
    cdef Py_ssize_t _page_out_at
    cdef list _page_waiters
    cdef PageSizes _sizes

    @cython.locals(consumer=Consumer, entry=QueuedMessage, position="long long", promise=int, is_first=bint)
    cpdef int enqueue(self, Message message) except -1
    cpdef int drop_duplicate(self, Message message) except -1
    cdef _forget_ids(self)
    @cython.locals(size=Py_ssize_t)
    cdef _let_wait(self, QueuedMessage entry)
    @cython.locals(sizes=PageSizes, left=Py_ssize_t)
    cdef Py_ssize_t _share(self, Py_ssize_t coming) except -1
    @cython.locals(keep=Py_ssize_t, kept=Py_ssize_t)
    cdef _page_out_window(self, PageSizes sizes)
    @cython.locals(leaving=list, size=Py_ssize_t)
    cdef _page_out_tail(self, Py_ssize_t limit)
    cdef _note_tail(self, Py_ssize_t size)
    cpdef page_out_tail(self)
    @cython.locals(size=Py_ssize_t)
    cpdef paged_in(self, list entries, Py_ssize_t lost=*)
    cpdef bint needs_page(self)
    cpdef await_page(self, waiter)
    @cython.locals(store=MessageStore)
    cdef _ask_for_page(self)
    @cython.locals(in_memory=Py_ssize_t, paged=Py_ssize_t)
    cdef bint _is_short_again(self) except -1
    @cython.locals(entry=QueuedMessage, size=Py_ssize_t)
    cdef Py_ssize_t _footprint_of(self, list entries) except -1
    @cython.locals(consumer=Consumer, entry=QueuedMessage, ready=Line)
    cpdef dispatch(self)
    @cython.locals(entry=QueuedMessage)
    cpdef QueuedMessage get(self)
    cdef _hand_over(self, QueuedMessage entry, Consumer consumer)
    cpdef tell_delivered(self, QueuedMessage entry, object who, bint is_settled)
    cpdef note_unacked(self)
    cpdef discard(self, QueuedMessage entry)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries, object who=*, int reason=*)
    @cython.locals(consumer=Consumer)
    cdef _release(self, QueuedMessage entry)
    cpdef wake(self, Consumer consumer)
    cpdef make_due(self)
