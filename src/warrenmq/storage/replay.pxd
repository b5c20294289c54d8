cimport cython

from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as, make_message
from warrenmq.storage.segments cimport Segment

cdef int _APPEND
cdef int _AGAIN
cdef int _FORGET
cdef int _RANGE
cdef int _DEFINE
cdef int _UNDEFINE
cdef int _CARRIED
cdef int _PERSISTENT
cdef int _CHUNK_BITS
cdef int _CHUNK_OCTETS
cdef int _EVENTS
cdef int _EVENTS_KEPT
cdef int _SEEN
cdef int _SEEN_TOO
cdef int _SEEN_ONLY
cdef Py_ssize_t _SEEN_HEAD
cdef Py_ssize_t _SEEN_SIZE
cdef int _TRACED
cdef Py_ssize_t _TRACE_SIZE
cdef Py_ssize_t _RECORD_SIZE


@cython.final
cdef class Forgotten:
    cdef dict _chunks

    @cython.locals(chunk=bytearray, index=int)
    cpdef add(self, long long position)
    @cython.locals(chunk=bytearray, index=int)
    cpdef bint has(self, long long position) except -1
    @cython.locals(number="long long", chunk=bytearray, place=int, octet=int, position="long long")
    cpdef mark(self, Segment segment)


@cython.final
cdef class QueueReplay:
    cdef readonly long long first_append
    cdef readonly long long next_position
    cdef readonly Forgotten forgotten
    cdef readonly list ranges
    cdef readonly dict carried
    cdef public object store

    cpdef bint is_dead(self, long long position) except -1
    @cython.locals(first="long long", last="long long")
    cpdef mark(self, Segment segment)
    cpdef saw(self, long long position)
    cpdef append(self, long long position)
    @cython.locals(entry=QueuedMessage)
    cpdef carry(self, Message message, long long position, long long epoch)
    cpdef forget(self, long long position)
    cpdef forget_range(self, long long first, long long last)


@cython.final
cdef class LogReplay:
    cdef readonly dict queues
    cdef readonly list definitions
    cdef readonly list events
    cdef readonly long long last_event
    cdef readonly dict seen
    cdef readonly dict unseen
    cdef bytes _data
    cdef Py_ssize_t _end

    @cython.locals(offset=Py_ssize_t, record=Py_ssize_t, start=Py_ssize_t, kind=int, queue=QueueReplay, message=Message, first="long long", last="long long")
    cpdef learn(self, bytes payload, long long epoch)
    @cython.locals(how=int)
    cdef _note_seen(self, Py_ssize_t start, Py_ssize_t end, long long epoch)
    @cython.locals(offset=Py_ssize_t, record=Py_ssize_t, kind=int, message=Message)
    cpdef give(self, bytes payload, long long epoch)
    @cython.locals(queue=QueueReplay)
    cdef bint _wants(self, unsigned int number, long long position, int flags) except -1
    @cython.locals(queue=QueueReplay, entry=QueuedMessage)
    cdef _hand_over(self, unsigned int number, Message message, long long position, long long epoch)
    @cython.locals(queue=QueueReplay)
    cdef QueueReplay _queue(self, unsigned int number)
    cdef int _octet(self, Py_ssize_t offset) except -1
    cdef Py_ssize_t _u32(self, Py_ssize_t offset) except -1
    cdef Py_ssize_t _u64(self, Py_ssize_t offset) except -1
    @cython.locals(sizes=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t _record_end(self, Py_ssize_t offset) except -1
    @cython.locals(
        end=Py_ssize_t, address_at=Py_ssize_t, header_at=Py_ssize_t, body_at=Py_ssize_t, data=bytes, flags=int,
        message=Message,
    )
    cdef Message _message(self, Py_ssize_t offset)


@cython.locals(alive=Py_ssize_t, offset=Py_ssize_t, index="long long", position="long long", flags=int, address_size=Py_ssize_t, header_size=Py_ssize_t, body_size=Py_ssize_t)
cpdef Py_ssize_t count_alive(bytes payload, long long first, bytearray dead) except -1
