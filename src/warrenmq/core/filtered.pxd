cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.consumer cimport Consumer, ConsumerRing
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.turn cimport Turn


@cython.final
cdef class FilterCursor:
    cdef readonly Consumer consumer
    cdef public long long base
    cdef readonly dict next
    cdef readonly dict returned

    cpdef bint wants(self, Message message) except -1
    cpdef Py_ssize_t position_in(self, Backlog part) except -1
    cpdef advance(self, Backlog part, long long position)


@cython.final
cdef class _Page:
    cdef readonly Backlog part
    cdef readonly long long first
    cdef readonly long long last
    cdef readonly list entries


@cython.final
cdef class FilteredDispatch:
    cdef object _queue
    cdef Backlog _backlog
    cdef ConsumerRing _ring
    cdef Turn _turn
    cdef dict _cursors
    cdef Py_ssize_t _filters
    cdef long long _end
    cdef Py_ssize_t _left
    cdef list _pages
    cdef readonly dict reading

    @cython.locals(ring=ConsumerRing, end="long long", consumer=Consumer, cursor=FilterCursor)
    cpdef Consumer choose(self, Message message, long long position)
    cpdef appended(self, long long position)
    cpdef dispatch(self)
    @cython.locals(parts=list, is_done=bint, is_behind=bint, cursor=FilterCursor, part=Backlog)
    cdef _finish(self)
    @cython.locals(cursor=FilterCursor, ready=list, first="long long", page=_Page, entry=QueuedMessage)
    cdef bint _serve(self, Backlog part) except -1
    @cython.locals(cursor=FilterCursor)
    cdef list _candidates(self, list ready, Backlog part, long long position)
    @cython.locals(ready=list, ring=ConsumerRing, consumer=Consumer, cursor=FilterCursor)
    cdef list _ready(self, Backlog part)
    @cython.locals(ring=ConsumerRing, cursor=FilterCursor, taken=QueuedMessage, consumer=Consumer)
    cdef bint _offer(self, Backlog part, QueuedMessage entry, list candidates, list ready) except -1
    @cython.locals(at=Py_ssize_t, other=FilterCursor)
    cdef _move_back(self, list ready, FilterCursor cursor)
    cdef _Page _messages_from(self, Backlog part, long long first)
    @cython.locals(entries=list)
    cdef _Page _in_memory(self, Backlog part, long long first, long long last)
