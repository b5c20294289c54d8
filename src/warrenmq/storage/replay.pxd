cimport cython

from warrenmq.core.message cimport Message, QueuedMessage, enqueue_as, make_message
from warrenmq.storage.codec cimport fields_size, read_fields, restore_message
from warrenmq.storage.segments cimport Segment

cdef int _APPEND
cdef int _AGAIN
cdef int _FORGET
cdef int _RANGE
cdef int _DEFINE
cdef int _UNDEFINE
cdef int _EVENTS
cdef int _EVENTS_DISCARDED
cdef int _SEEN
cdef int _ATTEMPTS
cdef int _POSITION
cdef int _OFFSET
cdef int _RELOGGED
cdef int _PERSISTENT
cdef int _CHUNK_BITS
cdef int _CHUNK_BYTES
cdef int _SEEN_ADD
cdef int _SEEN_REPLACE_ALL
cdef Py_ssize_t _SEEN_HEAD
cdef Py_ssize_t _SEEN_SIZE
cdef Py_ssize_t _OFFSET_HEAD
cdef Py_ssize_t _RECORD_SIZE
cdef Py_ssize_t _AGAIN_SIZE


@cython.final
cdef class DeletedPositions:
    cdef dict _chunks

    @cython.locals(chunk=bytearray, index=int)
    cpdef add(self, long long position)
    @cython.locals(chunk=bytearray, index=int)
    cpdef bint has(self, long long position) except -1
    @cython.locals(number="long long", chunk=bytearray, place=int, bits=int, position="long long")
    cpdef mark(self, Segment segment)


@cython.final
cdef class QueueReplay:
    cdef readonly long long first_append
    cdef readonly long long next_position
    cdef readonly DeletedPositions deleted
    cdef readonly list ranges
    cdef readonly dict relogged
    cdef readonly dict attempts
    cdef public object store

    cpdef bint is_dead(self, long long position) except -1
    @cython.locals(first="long long", last="long long")
    cpdef mark(self, Segment segment)
    cpdef note_used(self, long long position)
    cpdef append(self, long long position)
    cpdef relog(self, QueuedMessage entry)
    cpdef forget(self, long long position)
    cpdef forget_range(self, long long first, long long last)
    cpdef set_attempts(self, long long position, int attempts)


@cython.final
cdef class LogReplay:
    cdef readonly dict queues
    cdef readonly list events
    cdef readonly long long last_event
    cdef readonly dict seen
    cdef readonly dict reset_epochs
    cdef readonly dict offsets
    cdef bytes _data
    cdef Py_ssize_t _end
    cdef Message _message
    cdef Py_ssize_t _message_at

    @cython.locals(offset=Py_ssize_t, end=Py_ssize_t, kind=int, has_message=bint)
    cpdef list check(self, bytes payload)
    @cython.locals(offset=Py_ssize_t, record=Py_ssize_t, kind=int, queue=QueueReplay, last="long long")
    cpdef scan(self, bytes payload, long long epoch)
    @cython.locals(how=int)
    cdef _note_seen(self, Py_ssize_t offset, long long epoch)
    cdef _note_offset(self, unsigned int stream, long long position, Py_ssize_t tag_at)
    @cython.locals(offset=Py_ssize_t, record=Py_ssize_t, kind=int)
    cpdef restore_messages(self, bytes payload, long long epoch)
    @cython.locals(queue=QueueReplay)
    cdef bint _wants(self, unsigned int number, long long position, int flags) except -1
    @cython.locals(queue=QueueReplay)
    cdef _restore(self, unsigned int number, QueuedMessage entry)
    @cython.locals(queue=QueueReplay)
    cdef QueueReplay _queue(self, unsigned int number)
    cdef _read(self, bytes payload)
    cdef Py_ssize_t _end_of(self, Py_ssize_t offset, int kind) except -1
    @cython.locals(sizes=Py_ssize_t)
    cdef Py_ssize_t _end_of_message(self, Py_ssize_t offset) except -1
    @cython.locals(entry=QueuedMessage, flags=int)
    cdef QueuedMessage _entry(self, Py_ssize_t record, Py_ssize_t place, long long epoch)
    @cython.locals(
        data=bytes, flags=int, address_at=Py_ssize_t, header_at=Py_ssize_t, body_at=Py_ssize_t, message=Message
    )
    cdef Message _read_message(self, Py_ssize_t record)
    cdef int _byte(self, Py_ssize_t offset) except -1
    cdef Py_ssize_t _u32(self, Py_ssize_t offset) except -1
    cdef Py_ssize_t _u64(self, Py_ssize_t offset) except -1


@cython.locals(alive=Py_ssize_t, alive_bytes="long long", offset=Py_ssize_t, index="long long", position="long long", flags=int, address_size=Py_ssize_t, header_size=Py_ssize_t, body_size=Py_ssize_t)
cpdef tuple count_alive(bytes payload, long long first, bytearray dead)
