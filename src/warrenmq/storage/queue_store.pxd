cimport cython

from warrenmq.core.message cimport QueuedMessage, ended_attempts
from warrenmq.core.ports cimport MessageStore, PageSizes
from warrenmq.storage.codec cimport EpochBuffer
from warrenmq.storage.commit_log cimport LocalLog
from warrenmq.storage.segments cimport Segment, Segments
from warrenmq.storage.store_context cimport StoreContext

cdef int _PERSISTENT
cdef int _RELOGGED
cdef Segments _NO_SEGMENTS
cdef set _NOTHING_HELD


cdef class QueueStore(MessageStore):
    cdef readonly StoreContext context
    cdef str _folder
    cdef readonly unsigned int number
    cdef readonly Segments segments
    cdef readonly bint is_deleted
    cdef readonly long long restored_below
    cdef public object recovered
    cdef LocalLog _log
    cdef object _backlog
    cdef dict _unflushed
    cdef public Segment open_segment
    cdef object _reader
    cdef object _fetcher
    cdef public long long compact_above
    cdef dict _attempts
    cdef Py_ssize_t _restored_bytes
    cdef readonly set held

    @cython.locals(log=LocalLog)
    cpdef append(self, QueuedMessage entry)
    cpdef _track_unflushed(self, QueuedMessage entry)
    @cython.locals(position="long long", segment=Segment)
    cpdef forget(self, QueuedMessage entry)
    cpdef save_attempts(self, QueuedMessage entry)
    cpdef reclaim_segment(self, Segment segment)
    cpdef _drop_segment(self, Segment segment)
    @cython.locals(
        entry=QueuedMessage, segment=Segment, count=Py_ssize_t, size="long long", page=Py_ssize_t,
        page_last="long long",
    )
    cpdef _mark_unread(self, list entries)
    @cython.locals(entry=QueuedMessage, first="long long", batch=list)
    cpdef page_out(self, list entries)
    cpdef hold(self, list positions)
    @cython.locals(entry=QueuedMessage)
    cpdef list _take_unflushed(self, long long up_to)
    @cython.locals(entry=QueuedMessage, start=Py_ssize_t, size=Py_ssize_t, index=Py_ssize_t, page_size=Py_ssize_t, first="long long")
    cpdef _write(self, list entries, long long unread_from)
    @cython.locals(entry=QueuedMessage, segment=Segment, first="long long", last="long long", unread=Py_ssize_t, transient=Py_ssize_t, kept_bytes="long long", size=Py_ssize_t, overhead="long long", unread_bytes="long long", earliest="long long", latest="long long", has_lasting=bint, expires_ms="long long", held=set)
    cpdef _write_page(self, list entries, long long unread_from)
    cpdef page_in(self)
    @cython.locals(size=Py_ssize_t, context=StoreContext, sizes=PageSizes)
    cpdef restore_message(self, QueuedMessage entry)
