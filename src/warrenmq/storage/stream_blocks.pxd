cimport cython

from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.number_header cimport NumberHeader
from warrenmq.storage.codec cimport decode_records


@cython.final
cdef class Block:
    cdef readonly list runs
    cdef readonly Py_ssize_t size
    cdef readonly list problems
    cdef public Py_ssize_t lost
    cdef public bint is_cut
    cdef public bint is_filtered_out


@cython.locals(
    data=bytes, block=Block, stamps=NumberHeader, messages=list, expected="long long", at=Py_ssize_t, start=Py_ssize_t,
    entries=list, entry=QueuedMessage, message=Message,
)
cpdef Block read_block(object files, str path, Py_ssize_t offset, Py_ssize_t end, tuple needles=*)
@cython.locals(stamps=NumberHeader, messages=list, entry=QueuedMessage)
cpdef list stamp_all(list entries)
