cimport cython

cdef int _PENDING
cdef int _DONE
cdef int _FAILED
cdef int _UNCONFIRMED


@cython.final
@cython.freelist(1024)
cdef class Confirmation:
    cdef object _waits
    cdef object _error
    cdef list _waiters
    cdef public tuple message
    cdef public int state
    cdef public unsigned long long tag

    cpdef bint add_waiter(self, object waiter)
    cpdef settle(self, object error, list to_wake)


@cython.final
cdef class Unconfirmed:
    cdef object _waits
    cdef dict _pending
    cdef list _barriers
    cdef unsigned long long _lowest
    cdef unsigned long long _next
    cdef long long _offset
    cdef unsigned long long _resent
    cdef public object first_error

    cpdef bint has_one(self)
    @cython.locals(number="unsigned long long", confirmation=Confirmation)
    cpdef Confirmation add(self, tuple message)
    cpdef skip(self)
    @cython.locals(confirmation=Confirmation, each="unsigned long long")
    cpdef Py_ssize_t settle(self, unsigned long long number, bint multiple, bint is_ack, list to_wake) except -1
    cdef _lift_barriers(self, list to_wake)
