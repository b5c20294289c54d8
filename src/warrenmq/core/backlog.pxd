cimport cython

from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.ports cimport MessageStore, PageSizes
from warrenmq.core.stats cimport Stats

cdef int NOTHING
cdef Py_ssize_t _COMPACT_FROM
cdef Message _REMOVED
cdef QueuedMessage _NO_ENTRY


cdef class Backlog:
    # A message that goes straight to a consumer touches only the first of these.
    cdef public long long next_position
    cdef public Py_ssize_t waiting
    cdef public Py_ssize_t paged
    cdef list _entries
    cdef Py_ssize_t _head
    cdef Py_ssize_t _gaps
    cdef list _requeued
    cdef public long long body_bytes
    cdef readonly long long last_delivered
    cdef Py_ssize_t _window_bytes
    cdef readonly Stats stats
    cdef readonly MessageStore store
    cdef readonly bint is_durable
    cdef public bint counts_attempts
    cdef PageSizes _sizes
    cdef Py_ssize_t _page_out_at
    cdef list _tail
    cdef Py_ssize_t _tail_bytes
    cdef Py_ssize_t _tail_out_at
    cdef list _page_waiters
    cdef object _on_page
    cdef public long long restored_position
    cdef Backlog _parent
    cdef public object expiry

    cpdef Py_ssize_t bytes_in_memory(self) noexcept
    cpdef bint has_first(self) noexcept
    cpdef QueuedMessage first(self)
    cpdef int persist(self, QueuedMessage entry) except -1
    cpdef count_delivered(self, QueuedMessage entry)
    @cython.locals(size=Py_ssize_t)
    cpdef append(self, QueuedMessage entry)
    @cython.locals(head=Py_ssize_t, entries=list, entry=QueuedMessage)
    cpdef QueuedMessage take(self)
    @cython.locals(entries=list, index=Py_ssize_t, entry=QueuedMessage)
    cpdef QueuedMessage remove(self, long long position)
    @cython.locals(entries=list, head=Py_ssize_t, at=Py_ssize_t, entry=QueuedMessage, found=list)
    cpdef list find_from(self, long long position, Py_ssize_t count)
    cdef _count_removed(self, Py_ssize_t count, long long size)
    @cython.locals(high=Py_ssize_t, middle=Py_ssize_t, entry=QueuedMessage)
    cdef Py_ssize_t _index_of(self, list entries, Py_ssize_t low, long long position) except -1
    @cython.locals(entries=list, entry=QueuedMessage)
    cdef Py_ssize_t _skip_gaps(self, Py_ssize_t at) except -1
    @cython.locals(entries=list)
    cdef _close_gaps(self, Py_ssize_t index)
    cdef _compact(self)
    @cython.locals(first=QueuedMessage, entry=QueuedMessage, entries=list, at=Py_ssize_t)
    cpdef QueuedMessage first_from(self, long long position)
    @cython.locals(entry=QueuedMessage)
    cpdef long long first_position(self) except -1
    cpdef list parts(self)
    cpdef Backlog part_of(self, Message message)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries)
    @cython.locals(entries=list, returning=list, last="long long", passed=Py_ssize_t, start=Py_ssize_t)
    cdef _merge(self)
    @cython.locals(sizes=PageSizes, left=Py_ssize_t)
    cdef Py_ssize_t _memory_limit(self, Py_ssize_t coming) except -1
    @cython.locals(
        keep=Py_ssize_t, behind="long long", entries=list, at=Py_ssize_t, kept=Py_ssize_t, entry=QueuedMessage
    )
    cdef _page_out_window(self, PageSizes sizes)
    @cython.locals(
        sizes=PageSizes, keep=Py_ssize_t, on_disk="long long", entries=list, at=Py_ssize_t, end=Py_ssize_t,
        kept=Py_ssize_t, size=Py_ssize_t, entry=QueuedMessage, leaving=list, left=QueuedMessage,
    )
    cpdef page_out_requeued(self)
    @cython.locals(tail=list, at=Py_ssize_t, size=Py_ssize_t, entry=QueuedMessage)
    cdef _page_out_tail(self, Py_ssize_t limit)
    cdef _set_tail_bytes(self, Py_ssize_t size)
    cpdef page_out_tail(self)
    @cython.locals(size=Py_ssize_t, entry=QueuedMessage)
    cpdef add_page(self, list entries, Py_ssize_t lost=*, long long lost_bytes=*)
    cpdef mark_redelivered(self, QueuedMessage entry)
    cpdef remove_paged(self, Py_ssize_t count, long long size)
    cdef _count_paged(self, Py_ssize_t count)
    cpdef bint forget_paged(self, long long position, Py_ssize_t size)
    cpdef bint needs_page(self)
    cpdef await_page(self, waiter)
    cdef _notify_page_waiters(self)
    @cython.locals(store=MessageStore)
    cpdef read_ahead(self)
    @cython.locals(in_memory=Py_ssize_t, paged=Py_ssize_t)
    cdef bint _fits_in_memory(self) except -1
    @cython.locals(entry=QueuedMessage, size=Py_ssize_t)
    cdef Py_ssize_t _count_held(self, list entries) except -1
    cdef inline void _hold(self, Message message) noexcept
    cdef inline void _release(self, Message message) noexcept
