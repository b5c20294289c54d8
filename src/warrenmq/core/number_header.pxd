cimport cython

from warrenmq.core.message cimport Message, make_message
from warrenmq.protocol.properties cimport with_entry, without_header

cdef Py_ssize_t _START


@cython.final
cdef class NumberHeader:
    cdef str _name
    cdef bytes _entry
    cdef bytes _properties
    cdef bytes _before
    cdef bytes _after

    @cython.locals(
        header=bytes, stamped=bytes, source="char *", at="char *", size=Py_ssize_t, before=Py_ssize_t,
        after=Py_ssize_t, place=int,
    )
    cpdef Message stamp(self, Message message, long long offset)
    @cython.locals(end=Py_ssize_t, stamped=bytes)
    cdef _cut(self, bytes header)


@cython.locals(stamped=Message)
cdef Message _copy(Message message, bytes header)
