cimport cython

from warrenmq.client.confirms cimport Confirmation, Unconfirmed
from warrenmq.client.delivery cimport Delivery, Settler, make_delivery
from warrenmq.protocol.connection cimport ClientConnection, ContentHandler
from warrenmq.protocol.properties cimport BasicProperties

cdef Confirmation _NOT_CONFIRMED
cdef BasicProperties _PLAIN
cdef Py_ssize_t _MESSAGE_OVERHEAD


@cython.final
cdef class Gate:
    cdef readonly object lock
    cdef public ClientConnection protocol
    cdef readonly dict lanes
    cdef readonly Py_ssize_t output_limit
    cdef readonly bint keeps
    cdef public Py_ssize_t kept_bytes
    cdef public bint is_awake
    cdef readonly object wake
    cdef public object direct
    cdef public list room_waiters
    cdef public Py_ssize_t waited
    cdef public bint is_blocked
    cdef public object lost_reason
    cdef public object final_reason
    cdef readonly bint is_abandoned
    cdef readonly object metrics


@cython.final
cdef class Inbox:
    cdef readonly object lane
    cdef public object sink
    cdef public list items


cdef class Lane(Settler):
    cdef readonly Gate gate
    cdef readonly int number
    cdef readonly object channel
    cdef readonly ClientConnection protocol
    cdef readonly bint is_ready
    cdef readonly bint is_fenced
    cdef readonly bint is_paused
    cdef readonly bint is_publishing
    cdef public bint is_restoring
    cdef public bint is_confirming
    cdef public bint is_transactional
    cdef public bint lost_transaction
    cdef public bint has_confirm_listeners
    cdef readonly list undecided
    cdef readonly list undone
    cdef readonly Unconfirmed ledger
    cdef readonly list kept
    cdef readonly unsigned long long tag_offset
    cdef readonly unsigned long long last_seen
    cdef readonly long long life
    cdef readonly dict consumers
    cdef readonly Inbox inbox
    cdef readonly object close_reason

    @cython.locals(octets=bytes, gate=Gate, is_asleep=bint, protocol=ClientConnection, confirmation=Confirmation)
    cpdef publish(
        self, exchange, routing_key, body, BasicProperties properties=*, bint mandatory=*
    )
    @cython.locals(gate=Gate, is_asleep=bint, protocol=ClientConnection)
    cpdef bint ack(self, unsigned long long tag, bint multiple=*) except -1
    @cython.locals(gate=Gate, is_asleep=bint, protocol=ClientConnection, wire_tag="unsigned long long")
    cdef bint _refuse(self, unsigned long long tag, bint multiple, bint requeue, bint is_reject, bint ignores_fence) except -1
    cpdef bint is_undone(self, unsigned long long tag) except -1
    cdef _require_usable(self)
    cdef _review_publishing(self)
    @cython.locals(seen_tag="unsigned long long")
    cpdef unsigned long long note_tag(self, unsigned long long wire_tag)
    @cython.locals(gate=Gate)
    cdef _publish_later(self, exchange, routing_key, bytes body, BasicProperties properties, bint mandatory)


cdef class Ear(ContentHandler):
    cdef readonly Gate gate
    cdef public list inboxes
    cdef public list woken
    cdef public list events
    cdef public list returns
    cdef public list confirm_notices
    cdef public list strays
    cdef public Py_ssize_t confirmed
    cdef public Py_ssize_t nacked

    @cython.locals(lane=Lane, inbox=Inbox, seen_tag="unsigned long long")
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
    @cython.locals(lane=Lane)
    cpdef on_confirm(self, int channel, unsigned long long delivery_tag, bint multiple, bint is_ack)
    cpdef on_event(self, object event)
