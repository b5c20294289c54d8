cimport cython

from warrenmq.core.backlog cimport Backlog
from warrenmq.core.dead_letter cimport DeadLetters
from warrenmq.core.length_limit cimport LengthLimit
from warrenmq.core.message cimport Message, QueuedMessage
from warrenmq.core.publish_rules cimport wants_report
from warrenmq.core.queue cimport Queue


cdef int _DROPPED
cdef int _EXPIRED
cdef int _MAXLEN
cdef int _DELIVERY_LIMIT


cdef class DroppingQueue(Queue):
    cdef readonly Backlog backlog
    cdef readonly LengthLimit limit
    cdef readonly DeadLetters dead_letters
    cdef readonly object delivery_limit
    cdef readonly object retry
    cdef object _host
    cdef bint _is_dropping_excess
    cdef readonly bint has_reports

    cpdef discard(self, QueuedMessage entry)
    cpdef drop(self, QueuedMessage entry, int reason, object actor=*)
    cpdef finish_drop(self, QueuedMessage entry, int reason, object actor=*)
    cdef DeadLetters _letters_for(self, int reason)
    cpdef report_outcome(self, Message message, str outcome, str reason, int attempts)
    cdef _emit_dropped(self, QueuedMessage entry, int reason, object actor)
    @cython.locals(entry=QueuedMessage, limit=LengthLimit, left=int)
    cpdef drop_excess(self)
    @cython.locals(entry=QueuedMessage)
    cpdef list drop_over_limit(self, object limit, list entries, object actor)
