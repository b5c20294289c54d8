cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.message cimport QueuedMessage

cdef long long _NEVER
cdef int _RESOLUTION_MS
cdef int _PRUNE_FROM
cdef int _EXPIRED


@cython.final
cdef class MessageExpiry:
    cdef readonly long long ttl_ms
    cdef object _queue
    cdef Backlog _backlog
    cdef object _timers
    cdef object _timer
    cdef long long _latest
    cdef long long _ordered_from
    cdef dict _buckets
    cdef list _times
    cdef Py_ssize_t _indexed
    cdef list _pages
    cdef bint _is_reading
    cdef list _due
    cdef list _fetching
    cdef list _index_waiters
    cdef bint _is_fetching
    cdef dict _ready
    cdef Py_ssize_t _ready_bytes
    cdef long long _ready_until

    cpdef set_ttl(self, long long ttl_ms)
    cpdef long long expires_ms(self, long long ttl_ms, long long now_ms) noexcept
    cpdef add(self, long long position, Py_ssize_t size, long long expires_ms)
    cpdef requeued(self, QueuedMessage entry)
    @cython.locals(time="long long", bucket=tuple)
    cdef _index(self, long long position, Py_ssize_t size, long long expires_ms)
    cdef _count(self, Py_ssize_t entries)
    cdef QueuedMessage _take_ready(self, long long position)
    cdef _count_ready(self, Py_ssize_t size)
    cdef _wake_at(self, long long due_ms)
    @cython.locals(
        backlog=Backlog, forgotten=Py_ssize_t, position="long long", size=Py_ssize_t, entry=QueuedMessage, at=Py_ssize_t,
        ready=QueuedMessage,
    )
    cdef Py_ssize_t _expire_indexed(self, long long now_ms, Py_ssize_t most) except? -1
