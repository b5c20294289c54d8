cimport cython

from warrenmq.core.message cimport Message
from warrenmq.core.ports cimport Outbox
from warrenmq.core.stats cimport Stats, Traffic
from warrenmq.protocol.output cimport OutputBuffer
from warrenmq.server.ticker cimport Ticker

cdef Py_ssize_t _TURN_LIMIT


cdef class ConnectionOutbox(Outbox):
    cdef readonly OutputBuffer buffer
    cdef readonly Ticker ticker
    cdef readonly Stats stats
    cdef readonly Traffic traffic
    cdef public object transport
    cdef public int fd
    cdef bint _transport_has_output
    cdef readonly bint is_dirty
    cdef readonly bint is_peer_slow
    cdef public bint notifies_cancel
    cdef public object closes_channel

    cpdef deliver(self, int channel, bytes consumer_tag, unsigned long long delivery_tag, bint redelivered, Message message)
    cpdef get_ok(self, int channel, unsigned long long delivery_tag, bint redelivered, Message message, Py_ssize_t remaining)
    cpdef return_message(self, int channel, int reply_code, str reply_text, Message message)
    cpdef confirm(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef nack(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef cancel_consumer(self, int channel, str consumer_tag)
    cdef _mark_dirty(self)
    @cython.locals(size=Py_ssize_t, output="unsigned char *")
    cpdef flush(self)
    cdef bint _can_write(self) except -1
