from warrenmq.core.message cimport Message, QueuedMessage


cdef class Outbox:
    cdef public bint is_congested
    cdef public dict parked

    cpdef deliver(self, int channel, bytes consumer_tag, unsigned long long delivery_tag, bint redelivered, Message message)
    cpdef get_ok(self, int channel, unsigned long long delivery_tag, bint redelivered, Message message, Py_ssize_t remaining)
    cpdef returned(self, int channel, int reply_code, str reply_text, Message message)
    cpdef confirm(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef refuse(self, int channel, unsigned long long delivery_tag, bint multiple)
    cpdef cancelled(self, int channel, str consumer_tag)


cdef class MessageStore:
    cpdef append(self, QueuedMessage entry)
    cpdef forget(self, QueuedMessage entry)
