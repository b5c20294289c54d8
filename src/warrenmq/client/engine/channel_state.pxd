cimport cython

from warrenmq.client.confirms cimport Confirmation, Unconfirmed
from warrenmq.client.delivery cimport Delivery, Settler, make_delivery
from warrenmq.protocol.connection cimport ClientConnection, ContentHandler
from warrenmq.protocol.properties cimport BasicProperties

cdef Confirmation _NOT_CONFIRMED
cdef BasicProperties _PLAIN
cdef int _ACK
cdef int _NACK
cdef int _REJECT
cdef int _REQUEUE
cdef Py_ssize_t _MESSAGE_OVERHEAD


@cython.final
cdef class SharedConnection:
    cdef readonly object lock
    cdef public ClientConnection protocol
    cdef readonly dict channel_states
    cdef readonly Py_ssize_t output_limit
    cdef readonly bint resends_unconfirmed
    cdef public Py_ssize_t offline_bytes
    cdef public bint is_flush_scheduled
    cdef readonly object schedule_flush
    cdef public object write_directly
    cdef public list writable_callbacks
    cdef public Py_ssize_t awaited_confirms
    cdef public bint is_blocked
    cdef public object lost_reason
    cdef public object final_reason
    cdef readonly bint is_abandoned
    cdef readonly object metrics


@cython.final
cdef class DeliveryBuffer:
    cdef readonly object state
    cdef public object work_queue
    cdef public list items


cdef class ChannelState(Settler):
    cdef readonly SharedConnection shared
    cdef readonly int number
    cdef readonly object channel
    cdef readonly ClientConnection protocol
    cdef readonly bint is_ready
    cdef readonly bint is_outside_transaction
    cdef readonly bint is_paused
    cdef readonly bint is_publishing
    cdef public bint is_restoring
    cdef public bint is_confirming
    cdef public bint is_transactional
    cdef public bint lost_transaction
    cdef public bint has_confirm_listeners
    cdef readonly list uncommitted
    cdef readonly list rolled_back
    cdef readonly bint is_requeued
    cdef readonly unsigned long long settled_up_to
    cdef readonly Unconfirmed ledger
    cdef readonly list offline_publishes
    cdef readonly unsigned long long tag_offset
    cdef readonly unsigned long long last_client_tag
    cdef readonly long long life
    cdef readonly dict consumers
    cdef public object default_consumer
    cdef readonly DeliveryBuffer buffer
    cdef readonly object close_reason

    @cython.locals(data=bytes, shared=SharedConnection, must_schedule=bint, protocol=ClientConnection, confirmation=Confirmation)
    cpdef publish(
        self, exchange, routing_key, body, BasicProperties properties=*, bint mandatory=*
    )
    cpdef bint ack(self, unsigned long long tag, bint multiple=*) except -1
    @cython.locals(shared=SharedConnection, must_schedule=bint, protocol=ClientConnection, wire_tag="unsigned long long")
    cdef bint _settle(self, int method, unsigned long long tag, bint multiple, bint requeue) except -1
    cpdef bint is_rolled_back(self, unsigned long long tag) except -1
    cdef _require_usable(self)
    cdef _review_publishing(self)
    @cython.locals(client_tag="unsigned long long")
    cpdef unsigned long long to_client_tag(self, unsigned long long wire_tag)
    @cython.locals(shared=SharedConnection)
    cdef _publish_later(self, exchange, routing_key, bytes body, BasicProperties properties, bint mandatory)


cdef class LinkListener(ContentHandler):
    cdef readonly SharedConnection shared
    cdef public list filled_buffers
    cdef public list to_wake
    cdef public list events
    cdef public list returns
    cdef public list confirm_notifications
    cdef public list orphans
    cdef public Py_ssize_t confirmed
    cdef public Py_ssize_t nacked

    @cython.locals(state=ChannelState, buffer=DeliveryBuffer, client_tag="unsigned long long")
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
    @cython.locals(state=ChannelState)
    cpdef on_confirm(self, int channel, unsigned long long delivery_tag, bint multiple, bint is_ack)
    cpdef on_event(self, object event)
