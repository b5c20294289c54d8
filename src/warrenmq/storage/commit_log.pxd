from warrenmq.core.ports cimport CommitLog
from warrenmq.storage.codec cimport EpochBuffer


cdef int SYNCED
cdef int NOTHING
cdef Py_ssize_t _DEFERRED_BYTES


cdef class LocalLog(CommitLog):
    cdef readonly EpochBuffer buffer
    cdef readonly long long epoch
    cdef readonly long long epoch_time_ms
    cdef readonly long long last
    cdef readonly long long syncs
    cdef object _committer
    cdef bint _needs_sync
    cdef bint _has_waiters
    cdef bint _is_deferred
    cdef public object on_deferred

    cpdef note_work(self, int durability_level)
    cdef _begin_epoch(self)
    cpdef long long end_turn(self) except? -2
    cdef _submit_or_defer(self)
    cdef _submit_epoch(self)
