cimport cython

from warrenmq.core.channel cimport Channel
from warrenmq.core.exchange cimport Exchange
from warrenmq.core.ports cimport CommitLog


@cython.final
cdef class ChannelMethods:
    cdef object _session
    cdef object _vhost
    cdef object _outbox
    cdef str _user
    cdef CommitLog _log
    cdef long long _work_before
    cdef object _last_queue
    cdef readonly int number
    cdef readonly Channel channel
    cdef readonly Exchange writable_exchange

    cpdef require_writable(self, Exchange exchange)
