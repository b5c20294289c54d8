cimport cython

from warrenmq.core.message cimport QueuedMessage


@cython.final
cdef class Segment:
    cdef readonly long long first
    cdef public long long last
    cdef public int generation
    cdef public Py_ssize_t count
    cdef public Py_ssize_t transient
    cdef public Py_ssize_t alive
    cdef public Py_ssize_t unread
    cdef public long long alive_bytes
    cdef public long long unread_bytes
    cdef public long long body_bytes
    cdef public bint has_exact_bytes
    cdef public Py_ssize_t size
    cdef public Py_ssize_t written
    cdef public bint is_new
    cdef public bint is_old
    cdef public bint lacks_body_bytes
    cdef readonly object pages
    cdef public object record
    cdef public bint is_compacting
    cdef public bint is_dropped
    cdef public bint is_unreadable
    cdef public long long overhead
    cdef public long long counted_size
    cdef public long long counted_live
    cdef public bytearray dead
    cdef public Py_ssize_t marks_size
    cdef public object unwritten_marks

    cpdef long long live_bytes(self) noexcept
    cpdef note_page(self, Py_ssize_t count, long long overhead)
    @cython.locals(index="long long", place=Py_ssize_t, dead=bytearray)
    cpdef bint mark_dead(self, long long position) except -1
    cpdef delete(self, long long position, bint is_persistent, long long body_bytes)
    @cython.locals(entry=QueuedMessage)
    cpdef note_read(self, list entries)
    cpdef note_unread(self, Py_ssize_t page, Py_ssize_t count, long long body_bytes)
    cpdef delete_unread(self, long long above, set held)
    cpdef mark_inexact(self, long long first, long long last)
    @cython.locals(position="long long")
    cpdef mark(self, long long first, long long last, bint is_durable)
    cpdef bint is_full(self, long long position, Py_ssize_t max_bytes) except -1


@cython.final
cdef class Segments:
    cdef readonly list all
    cdef public Segment reading
    cdef readonly long long size
    cdef readonly long long live
    cdef Segment _last_found

    @cython.locals(hot=Segment, segments=list, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, segment=Segment)
    cpdef Segment find(self, long long position)
    @cython.locals(size="long long", live="long long")
    cpdef note(self, Segment segment)
    cpdef remove(self, Segment segment)
    cdef _subtract(self, Segment segment)
    @cython.locals(segment=Segment)
    cpdef replace(self, list run, Segment merged)
    cpdef Segment after(self, Segment segment)
    cpdef long long excess(self) noexcept
    cpdef bint has_many_small(self, Py_ssize_t max_bytes) except -1
    cpdef list choose_run(self, Segment written, Py_ssize_t max_bytes, Py_ssize_t allowance)
    @cython.locals(
        segment=Segment, index=Py_ssize_t, best=Py_ssize_t, low=Py_ssize_t, high=Py_ssize_t, best_live="long long",
        best_size="long long", live="long long", size="long long",
    )
    cdef list _choose_dead(self, Segment written, Py_ssize_t max_bytes)
    cdef bint _can_join(
        self, Segment segment, Segment written, long long live, long long size, Py_ssize_t max_bytes, Py_ssize_t low,
        Py_ssize_t high
    ) except -1
    @cython.locals(
        segment=Segment, low=Py_ssize_t, high=Py_ssize_t, best_low=Py_ssize_t, best_high=Py_ssize_t, size="long long",
    )
    cdef list _choose_small(self, Segment written, Py_ssize_t max_bytes)
    @cython.locals(first=Segment, last=Segment)
    cdef Py_ssize_t _span(self, Py_ssize_t low, Py_ssize_t high) except -1
