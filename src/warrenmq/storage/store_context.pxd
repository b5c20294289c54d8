from warrenmq.core.ports cimport PageSizes
from warrenmq.storage.commit_log cimport LocalLog


cdef class StoreContext:
    cdef readonly LocalLog log
    cdef readonly object pager
    cdef readonly PageSizes sizes
    cdef readonly dict stores
    cdef readonly dict idle_positions
    cdef readonly dict unflushed
    cdef readonly dict marked_stores
    cdef readonly object manifest
    cdef public object on_compactable
    cdef readonly Py_ssize_t segment_size
    cdef readonly Py_ssize_t page_size
    cdef readonly Py_ssize_t read_size
    cdef readonly Py_ssize_t dead_allowance
    cdef readonly str root
    cdef public Py_ssize_t restored_bytes
    cdef public Py_ssize_t damaged_pages
    cdef public Py_ssize_t lost_messages
    cdef public object describe_queue
