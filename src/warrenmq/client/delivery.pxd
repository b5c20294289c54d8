cimport cython


cdef class Settler:
    cpdef bint ack(self, unsigned long long tag, bint multiple=*) except -1
    cpdef bint nack(self, unsigned long long tag, bint multiple=*, bint requeue=*) except -1
    cpdef bint reject(self, unsigned long long tag, bint requeue=*) except -1
    cpdef bint is_stale(self, unsigned long long tag) except -1
    cpdef bint is_rolled_back(self, unsigned long long tag) except -1
    cpdef facade(self)


@cython.final
@cython.freelist(1024)
cdef class Delivery:
    cdef Settler _settler
    cdef bytes _header
    cdef object _properties
    cdef readonly object consumer
    cdef readonly str consumer_tag
    cdef readonly unsigned long long delivery_tag
    cdef readonly bint redelivered
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly bytes body
    cdef readonly object message_count
    cdef bint _is_settled

    cpdef bint ack(self, bint multiple=*) except -1
    cpdef bint nack(self, bint multiple=*, bint requeue=*) except -1
    cpdef bint reject(self, bint requeue=*) except -1
    cpdef bint is_of(self, Settler settler)
    cpdef run(self)


@cython.locals(delivery=Delivery)
cpdef Delivery make_delivery(
    Settler settler,
    object consumer,
    str consumer_tag,
    unsigned long long delivery_tag,
    bint redelivered,
    str exchange,
    str routing_key,
    bytes header,
    bytes body,
)


@cython.final
cdef class Returned:
    cdef bytes _header
    cdef object _properties
    cdef readonly int reply_code
    cdef readonly str reply_text
    cdef readonly str exchange
    cdef readonly str routing_key
    cdef readonly bytes body
