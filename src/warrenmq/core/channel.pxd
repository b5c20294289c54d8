cimport cython

from warrenmq.core.channel_confirms cimport ConfirmingChannel
from warrenmq.core.consumer cimport wake_channel
from warrenmq.core.exchange cimport Exchange, Route
from warrenmq.core.ledger cimport Ledger
from warrenmq.core.message cimport Message, QueuedMessage, make_message
from warrenmq.core.ports cimport CommitLog, EventSink, Outbox
from warrenmq.core.publish_rules cimport needs_inspection
from warrenmq.core.queue cimport Queue
from warrenmq.core.stats cimport Stats
from warrenmq.core.turn cimport Turn


cdef int NOTHING
cdef int WRITTEN
cdef int SYNCED
cdef int WAITS_FOR
cdef int REJECTED
cdef Py_ssize_t _MAX_SHARED_HEADER
cdef int _ROUTED
cdef int _ACKED


cdef class Channel(ConfirmingChannel):
    cdef readonly object vhost
    cdef readonly str vhost_name
    cdef readonly object connection
    cdef readonly str connection_name
    cdef readonly str user
    cdef readonly Ledger ledger
    cdef readonly dict consumers
    cdef readonly Py_ssize_t default_prefetch
    cdef public bint has_timed_out
    cdef public Exchange writable_exchange
    cdef public long long writable_revision
    cdef readonly bytes shared_header
    cdef readonly object transaction
    cdef readonly object reply_queue
    cdef readonly long long published
    cdef readonly long long unroutable
    cdef readonly long long acked

    @cython.locals(queues=list, message=Message)
    cpdef publish(self, Route route, bytes header, bytes body)
    cdef bint _share_header(self, bytes header) except -1
    cdef _publish_inspected(self, Route route, bytes header, bytes body)
    @cython.locals(queue=Queue, outcome=int)
    cdef int _deliver_to(self, Message message, list queues, bint is_mandatory) except -1
    cdef _record_rejected(self)
    @cython.locals(taken=list)
    cpdef reject(self, unsigned long long tag, bint multiple, bint requeue, int kind=*)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cdef _require_requeueable(self, list returning, list taken)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cpdef refuse_all(self, list entries, int kind, bint requeue)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cdef _drop_all(self, list entries)
    cdef _return_unroutable(self, Message message, bint is_mandatory)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cpdef ack(self, unsigned long long tag, bint multiple)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cpdef settle_all(self, list entries)
