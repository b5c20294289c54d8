cimport cython

from warrenmq.core.channel cimport Channel
from warrenmq.core.exchange cimport Route
from warrenmq.core.stats cimport Revision, Stats
from warrenmq.protocol.frames cimport FrameHandler
from warrenmq.protocol.properties cimport validate
from warrenmq.server.flow cimport Alarms

cdef int _REJECT
cdef int _NACK
cdef int _REFUSAL_SIZE
cdef int _REJECTED
cdef int _NACKED
cdef Py_ssize_t _MAX_CACHED_HEADER


cdef class MessagePath(FrameHandler):
    cdef object _session
    cdef Alarms _alarms
    cdef Revision _permissions
    cdef Stats _stats
    cdef bytes _valid_header
    cdef readonly unsigned long long max_message_size
    cdef public dict channels
    cdef public dict routes

    @cython.locals(target=Channel, route=Route)
    cpdef on_content(self, int channel, bytes method, bytes header, bytes body)
    @cython.locals(target=Channel)
    cpdef on_ack(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef bint on_content_header(self, int channel, unsigned long long body_size) except -1
    cpdef bint on_buffered(self, int channel, Py_ssize_t size) except -1
    cpdef on_released(self, Py_ssize_t size)
    cpdef end(self)
    @cython.locals(index="long long")
    cpdef on_method(self, int channel, bytes payload)
    @cython.locals(target=Channel, tag="unsigned long long", position=int, flags=int)
    cdef _on_refusal(self, int channel, long long index, bytes payload)
    cpdef on_heartbeat(self)


@cython.locals(class_id="long long")
cpdef long long index_of(bytes payload) except? -1
