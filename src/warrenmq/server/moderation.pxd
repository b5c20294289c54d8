cimport cython

cdef int _PERIOD


@cython.final
cdef class Moderation:
    cdef readonly double pause
    cdef object _clock
    cdef tuple _pauses
    cdef int _in_use
    cdef double _compare_at
    cdef double _retry
    cdef double _rate_without
    cdef int _shorter
    cdef int _window
    cdef double _shorter_rate
    cdef double _longer_rate
    cdef int _turns_left
    cdef double _since
    cdef long long _bytes

    cpdef double end_turn(self, long long bytes_in) except -1
    @cython.locals(now=double, seconds=double, rate=double, received="long long")
    cdef _end_window(self, long long bytes_in)
    cdef _begin_comparison(self, int shorter)
    cdef _compare(self, double rate, double now)
    cdef _use(self, int index, double now)
