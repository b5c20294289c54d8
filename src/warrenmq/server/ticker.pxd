cimport cython

from warrenmq.core.ports cimport CommitLog
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn
from warrenmq.server.moderation cimport Moderation


@cython.final
cdef class Ticker:
    cdef readonly object call_soon
    cdef object _clock
    cdef object _broker
    cdef Turn _turn
    cdef object _now_ms
    cdef CommitLog _log
    cdef object _sleep
    cdef Moderation _moderation
    cdef Stats _stats
    cdef bint _is_scheduled
    cdef double _busy_poll
    cdef bint _is_polling
    cdef double _poll_until
    cdef int _polls_left
    cdef int _turns_without_poll
    cdef bint _is_reading
    cdef double _reading_since
    cdef public object after_turn
    cdef readonly list dirty

    cpdef schedule(self)
    cpdef begin_large_read(self)
    cpdef mark_dirty(self, outbox)
    cpdef end_turn_early(self)
    @cython.locals(now=double)
    cpdef bint has_read_too_long(self) except -1
    @cython.locals(dirty=list, pause=double)
    cdef _end(self)
    cdef _start_polling(self)
