cimport cython

from warrenmq.core.consumer cimport Consumer
from warrenmq.core.ledger cimport Ledger
from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.number_header cimport NumberHeader
from warrenmq.core.ports cimport StreamStore
from warrenmq.core.queue cimport Queue
from warrenmq.core.stream_filter cimport StreamFilter

cdef int NOTHING
cdef int QUEUED
cdef int DROPPED
cdef Py_ssize_t _SCAN_LIMIT
cdef Py_ssize_t _READ_COST
cdef Py_ssize_t _TAIL_LIMIT
cdef Py_ssize_t _SMALL_TAIL_LIMIT
cdef Py_ssize_t _MEMORY_BUDGET
cdef Py_ssize_t _CURSOR_LIMIT
cdef int _DROPPED
cdef int _DUPLICATE
cdef Message _NO_MESSAGE


@cython.final
cdef class Cursor:
    cdef readonly object stream
    cdef readonly Consumer consumer
    cdef readonly StreamFilter filter
    cdef public object tracked
    cdef public long long position
    cdef public long long first
    cdef public list messages
    cdef public bint is_shrunk
    cdef public bint is_reading

    @cython.locals(messages=list, begin="long long", end="long long", size=Py_ssize_t, message=Message)
    cpdef shrink(self)
    cpdef page_arrived(self, long long first, list messages)
    cpdef start_at(self, long long position)


cdef class Stream(Queue):
    cdef readonly long long readable
    cdef readonly StreamStore store
    cdef readonly long long next_position
    cdef Py_ssize_t _tail_bytes
    cdef long long _restored_position
    cdef readonly dict cursors
    cdef readonly dict reads
    cdef dict _ready
    cdef dict _caught_up
    cdef Cursor _last_served
    cdef Py_ssize_t _scan_left
    cdef dict _over_limit
    cdef Cursor _reading_for
    cdef list _tail
    cdef long long _tail_first
    cdef NumberHeader _offset_header
    cdef readonly object offsets

    @cython.locals(position="long long")
    cpdef int enqueue(self, Message message) except -1
    cpdef make_readable(self, long long end)
    cpdef forget_before(self, long long first)
    @cython.locals(size=Py_ssize_t)
    cdef _add_to_tail(self, Message message, long long position)
    @cython.locals(excess=Py_ssize_t, count=Py_ssize_t, message=Message)
    cdef _halve_tail(self)
    @cython.locals(tail=list, size=Py_ssize_t, index=Py_ssize_t, message=Message)
    cdef _trim_tail(self, Py_ssize_t count)
    @cython.locals(ready=dict, cursor=Cursor)
    cpdef dispatch(self)
    cdef _defer(self)
    @cython.locals(consumer=Consumer, position="long long")
    cdef _serve(self, Cursor cursor)
    @cython.locals(
        consumer=Consumer, ledger=Ledger, filter=StreamFilter, message=Message, entry=QueuedMessage,
        index="long long", end="long long",
    )
    cdef _send(self, Cursor cursor, list messages, long long first)
    cpdef cursor_ready(self, Cursor cursor)
    cpdef QueuedMessage get(self)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries, object actor=*, int reason=*)
    @cython.locals(cursor=Cursor)
    cpdef wake(self, Consumer consumer)
    cpdef make_due(self)
    cdef _wake_caught_up(self)
