cimport cython

from warrenmq.protocol cimport big_endian
from warrenmq.protocol.frames cimport FrameHandler, FrameReader
from warrenmq.protocol.output cimport OutputBuffer
from warrenmq.protocol.properties cimport BasicProperties

cdef object _OPEN
cdef bytes _NO_PROPERTIES
cdef Py_ssize_t _HEADER_START
cdef Py_ssize_t _FRAME_OVERHEAD
cdef Py_ssize_t _MIN_DELIVER_SIZE
cdef Py_ssize_t _MAX_CACHED
cdef int _DELIVER_ID
cdef unsigned int _NACK
cdef unsigned int _REJECT


cdef class ContentHandler:
    cpdef on_deliver(
        self,
        int channel,
        str consumer_tag,
        unsigned long long delivery_tag,
        bint redelivered,
        str exchange,
        str routing_key,
        bytes header,
        bytes body,
    )
    cpdef on_confirm(self, int channel, unsigned long long delivery_tag, bint multiple, bint is_ack)
    cpdef on_event(self, object event)


cdef class ClientConnection(FrameHandler):
    cdef dict _addresses
    cdef set _channels
    cdef dict _consumer_tags
    cdef list _events
    cdef tuple _sent_close
    cdef object _handshake
    cdef bint _has_received
    cdef ContentHandler _content_handler
    cdef object _heartbeat
    cdef bytes _leftover
    cdef unsigned long long _max_body_size
    cdef OutputBuffer _output
    cdef dict _publishes
    cdef FrameReader _reader
    cdef readonly object phase

    cpdef list receive(self, data, now)
    cdef _receive_header(self, bytes data)
    cdef _read_frames(self, bytes data)
    cdef _emit(self, event)
    cdef list _take_events(self)

    @cython.locals(method=bytes, encoded=bytes)
    cpdef publish(
        self,
        int channel,
        exchange,
        routing_key,
        bytes body,
        BasicProperties properties=*,
        bint mandatory=*,
        bytes header=*,
    )
    cpdef ack(self, int channel, delivery_tag, bint multiple=*)
    cpdef nack(self, int channel, delivery_tag, bint multiple=*, bint requeue=*)
    cpdef reject(self, int channel, delivery_tag, bint requeue=*)
    cpdef list take_output(self, now)
    cdef bytes _encode_publish(self, exchange, routing_key, bint mandatory)
    cdef _require_open(self)
    cdef _require_channel(self, int channel)

    cdef _admit_content(self, int channel, unsigned long long body_size)
    @cython.locals(
        data="const unsigned char *",
        size=Py_ssize_t,
        tag_end=Py_ssize_t,
        address_at=Py_ssize_t,
        key_at=Py_ssize_t,
        consumer_tag=str,
        address=tuple,
    )
    cdef bint _handle_delivery(self, int channel, bytes method, bytes header, bytes body) except -1
    cdef str _cache_consumer_tag(self, bytes data)
    @cython.locals(exchange_end=Py_ssize_t)
    cdef tuple _cache_address(self, bytes data)


cdef str _text(bytes data)
