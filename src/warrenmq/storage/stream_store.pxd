cimport cython

from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.ports cimport StreamStore
from warrenmq.storage.codec cimport EpochBuffer, decode_records, encode_records
from warrenmq.storage.commit_log cimport LocalLog
from warrenmq.storage.stream_blocks cimport Block, stamp_all

cdef int SYNCED
cdef int _PERSISTENT
cdef long long _PAGE_SPAN_MS
cdef Py_ssize_t _RECORD_OVERHEAD


@cython.final
cdef class OpenPage:
    cdef readonly long long first
    cdef readonly long long time_first
    cdef public long long time_last
    cdef public list entries
    cdef public object payload
    cdef public Py_ssize_t size


cdef class FileStreamStore(StreamStore):
    cdef readonly object context
    cdef readonly str folder
    cdef readonly unsigned int number
    cdef readonly object segments
    cdef readonly bint is_deleted
    cdef public bint is_expendable
    cdef readonly long long next_position
    cdef LocalLog _log
    cdef object _limits
    cdef object _stream
    cdef long long _now_ms
    cdef object _recovery_clock
    cdef long long _removed_below
    cdef Py_ssize_t _page_bytes
    cdef object _page_timer
    cdef object _age_timer
    cdef readonly long long last_position
    cdef list _pages
    cdef OpenPage _open
    cdef long long _epoch
    cdef long long _end
    cdef object _pending_epochs
    cdef dict _reading

    @cython.locals(log=LocalLog)
    cpdef append(self, QueuedMessage entry)
    cdef _begin_epoch(self, long long epoch)
    @cython.locals(page=OpenPage, message=Message)
    cdef _add(self, QueuedMessage entry)
    cdef OpenPage _begin_page(self, long long first)
    @cython.locals(last="long long", count=Py_ssize_t, entry=QueuedMessage)
    cdef _close_page(self, OpenPage page)
    cdef _write_page(self, OpenPage page, long long last, Py_ssize_t count, list payload, object done)
