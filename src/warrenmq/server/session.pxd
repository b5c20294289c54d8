cimport cython

from warrenmq.core.channel cimport Channel
from warrenmq.core.exchange cimport Exchange, Route
from warrenmq.protocol.frames cimport FrameHandler, FrameReader
from warrenmq.protocol.properties cimport validate
from warrenmq.server.channel_methods cimport ChannelMethods
from warrenmq.server.flow cimport Alarms
from warrenmq.server.outbox cimport ConnectionOutbox


cdef class Session(FrameHandler):
    cdef object _connection
    cdef readonly object broker
    cdef readonly ConnectionOutbox outbox
    cdef readonly Alarms alarms
    cdef readonly unsigned long long max_message_size
    cdef readonly object handshake
    cdef readonly FrameReader reader
    cdef readonly dict channels
    cdef readonly str user
    cdef readonly bytes valid_header
    cdef readonly object vhost
    cdef dict routes
    cdef readonly bint is_closed
    cdef readonly bint is_finished

    @cython.locals(state=ChannelMethods, route=Route)
    cpdef on_content(self, int channel, bytes method, bytes header, bytes body)
    @cython.locals(state=ChannelMethods)
    cpdef on_ack(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef bint on_content_header(self, int channel, unsigned long long body_size) except -1
    cpdef on_method(self, int channel, bytes payload)
    cpdef on_heartbeat(self)
