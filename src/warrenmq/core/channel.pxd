cimport cython

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
cdef int _CONFIRMED


cdef class Channel:
    cdef readonly object broker
    cdef readonly object vhost
    cdef readonly str vhost_name
    cdef readonly object connection
    cdef readonly str connection_name
    cdef readonly EventSink events
    cdef readonly CommitLog log
    cdef readonly list traced
    cdef readonly list traced_tags
    cdef readonly int number
    cdef readonly Outbox outbox
    cdef readonly str user
    cdef readonly Stats stats
    cdef readonly Turn turn
    cdef readonly Ledger ledger
    cdef readonly dict consumers
    cdef readonly Py_ssize_t default_prefetch
    cdef readonly bint is_open
    cdef public Exchange writable_exchange
    cdef public long long writable_revision
    cdef readonly bytes shared_header
    cdef readonly object transaction
    cdef readonly object reply_queue
    cdef readonly long long published
    cdef readonly long long unroutable
    cdef readonly long long nacked
    cdef readonly long long acked
    cdef readonly bint is_confirming
    cdef readonly unsigned long long published_tag
    cdef readonly unsigned long long confirmed_tag
    cdef readonly object awaiting_epoch
    cdef readonly list rejected
    cdef readonly bint is_in_turn
    cdef readonly int turn_level

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
    cdef _await_confirm(self, Message message)
    cdef _return_unroutable(self, Message message, bint is_mandatory)
    cpdef add_unconfirmed(self)
    @cython.locals(level=int)
    cpdef end_turn(self, unsigned long long epoch)
    cdef _await_epoch(self, unsigned long long epoch, int level)
    @cython.locals(epoch="unsigned long long", level=int, tag="unsigned long long", up_to="unsigned long long")
    cpdef bint confirm_epochs(self, unsigned long long written, unsigned long long durable) except -1
    @cython.locals(first="unsigned long long")
    cdef _confirm_up_to(self, unsigned long long tag)
    cdef _confirm(self, unsigned long long first, unsigned long long last)
    @cython.locals(traced=list, tags=list, count=Py_ssize_t, number="unsigned long long", message=Message)
    cdef _end_traced(self, unsigned long long tag, bint is_confirmed)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cpdef ack(self, unsigned long long tag, bint multiple)
    @cython.locals(entry=QueuedMessage, queue=Queue)
    cpdef settle_all(self, list entries)
