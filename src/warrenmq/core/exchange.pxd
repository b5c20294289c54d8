cimport cython

from warrenmq.core.ports cimport RouteSampler


cdef class Exchange:
    cdef readonly str name
    cdef readonly str type
    cdef readonly bint is_durable
    cdef readonly bint is_auto_delete
    cdef readonly bint is_internal
    cdef readonly dict arguments
    cdef readonly object options
    cdef readonly str alternate
    cdef readonly object matcher
    cdef public Py_ssize_t binding_count
    cdef public object deduplication
    cdef public object history


@cython.locals(uses_message=bint, current=Exchange, destinations=dict)
cpdef bint collect_queues(Exchange exchange, keys, traits, exchanges, queues, dict found, path=*) except -1


@cython.final
cdef class Route:
    cdef readonly Exchange exchange
    cdef readonly str routing_key
    cdef readonly bytes address
    cdef readonly bint is_mandatory
    cdef readonly list queues
    cdef public RouteSampler sampler
