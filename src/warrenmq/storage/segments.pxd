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
    cdef public bint is_counted
    cdef public Py_ssize_t size
    cdef public Py_ssize_t written
    cdef public bint is_new
    cdef public bint is_old
    cdef public object record
    cdef public bint is_compacting
    cdef public bint is_wanted
    cdef public bytearray dead
    cdef public Py_ssize_t dead_size
    cdef public object unwritten_marks

    @cython.locals(index="long long", place=Py_ssize_t, dead=bytearray)
    cpdef bint set_dead(self, long long position) except -1
    cpdef kill(self, long long position, bint is_persistent, long long body_bytes)
    @cython.locals(entry=QueuedMessage)
    cpdef read_back(self, list entries)
    cpdef kill_unread(self, long long above)
    @cython.locals(position="long long")
    cpdef bury(self, long long first, long long last)
    cpdef bint is_full(self, long long position, Py_ssize_t max_bytes) except -1


@cython.final
cdef class Segments:
    cdef readonly list all
    cdef public Segment reading
    cdef public Segment passed
    cdef Segment _hot

    @cython.locals(hot=Segment, segments=list, low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, segment=Segment)
    cpdef Segment find(self, long long position)
    cpdef remove(self, Segment segment)
    cpdef Segment after(self, Segment segment)
