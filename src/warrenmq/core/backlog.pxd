cimport cython

from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as
from warrenmq.core.ports cimport MessageStore, PageSizes
from warrenmq.core.stats cimport Stats
from warrenmq.core.window cimport Window

cdef int NOTHING
cdef Py_ssize_t COMPACT_FROM
cdef Message REMOVED
cdef QueuedMessage NO_ENTRY


cdef class Backlog(Window):
    # A message that goes straight to a consumer touches only the first of these.
    cdef public long long next_position
    cdef public Py_ssize_t waiting
    cdef public Py_ssize_t paged
    cdef object _ahead
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
    cdef long long _redelivered_up_to
    cdef Backlog _parent
    cdef public object expiry

    cpdef Py_ssize_t bytes_in_memory(self) noexcept
    cpdef int persist(self, QueuedMessage entry) except -1
    cpdef count_delivered(self, QueuedMessage entry)
    @cython.locals(size=Py_ssize_t)
    cpdef append(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage, head=Py_ssize_t, entries=list, at=Py_ssize_t, found=list)
    cpdef list in_memory(self, long long first, long long last, Py_ssize_t most)
    @cython.locals(head=Py_ssize_t, entries=list, entry=QueuedMessage)
    cpdef QueuedMessage take(self)
    @cython.locals(entries=list, index=Py_ssize_t, entry=QueuedMessage, found=QueuedMessage)
    cpdef QueuedMessage remove(self, long long position)
    cdef _count_removed(self, Py_ssize_t count, long long size)
    @cython.locals(entry=QueuedMessage)
    cpdef long long first_position(self) except -1
    cpdef list parts(self)
    cpdef Backlog part_of(self, Message message)
    cpdef settle(self, QueuedMessage entry)
    @cython.locals(entry=QueuedMessage)
    cpdef requeue(self, list entries)
    cdef _return_ahead(self, QueuedMessage entry)
    cdef _merge_ahead(self)
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
    @cython.locals(entry=QueuedMessage, leaving=list)
    cdef _page_out_ahead(self, ahead)
    @cython.locals(left=QueuedMessage)
    cdef _count_left(self, list leaving)
    @cython.locals(tail=list, at=Py_ssize_t, size=Py_ssize_t, entry=QueuedMessage)
    cdef _page_out_tail(self, Py_ssize_t limit)
    cdef _set_tail_bytes(self, Py_ssize_t size)
    cpdef page_out_tail(self)
    @cython.locals(size=Py_ssize_t, entry=QueuedMessage)
    cpdef add_page(self, list entries, Py_ssize_t lost=*, long long lost_bytes=*)
    cpdef mark_redelivered(self, QueuedMessage entry)
    cpdef remove_paged(self, Py_ssize_t count, long long size)
    cdef _count_paged(self, Py_ssize_t count)
    cpdef bint take_paged(self, QueuedMessage entry) except -1
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
