cimport cython

from warrenmq.protocol.properties cimport delivery_mode

cdef Py_ssize_t _OVERHEAD
cdef int _PERSISTENT


@cython.final
cdef class Message:
    cdef readonly bytes address
    cdef readonly bytes header
    cdef readonly bytes body
    cdef readonly unsigned int size
    cdef unsigned int _header_size
    cdef public int queue_count
    cdef public bint has_deaths
    cdef public bint wants_report
    cdef public bytes blind_keys
    cdef public long long ttl_ms
    cdef public long long uid
    cdef public long long publish_time
    cdef public long long enqueue_time

    @cython.locals(copy=Message)
    cpdef Message with_header(self, bytes header)
    cpdef bint is_persistent(self) except -1
    cpdef Py_ssize_t footprint(self) noexcept
    cpdef Py_ssize_t shared_size(self) noexcept


@cython.final
cdef class QueuedMessage:
    cdef readonly Message message
    cdef readonly long long position
    cdef public long long epoch
    cdef public bint redelivered
    cdef public int attempts
    cdef public long long expires_ms
    cdef public object queue
    cdef public object consumer


@cython.locals(message=Message)
cpdef Message make_message(bytes address, bytes header, bytes body)
@cython.locals(entry=QueuedMessage)
cpdef QueuedMessage enqueue_as(Message message, long long position)
cpdef int ended_attempts(QueuedMessage entry) noexcept
cpdef bytes address_of(str exchange, str routing_key)
