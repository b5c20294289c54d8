cimport cython

from warrenmq.events cimport memory, records, schema
from warrenmq.events.context_cache cimport ContextCache
from warrenmq.events.memory cimport Bytes
from warrenmq.events.message_ids cimport clean_text, pack_message_ids
from warrenmq.events.row_reader cimport RowReader, scan


@cython.final
cdef class Rows:
    cdef bytearray _data
    cdef Bytes _out
    cdef list _spares
    cdef readonly list names, contexts
    cdef dict _numbers, _context_numbers
    cdef readonly ContextCache context_cache
    cdef tuple _row_header
    cdef bytes _last_message_ids
    cdef Py_ssize_t _logged_size, _logged_count, _record_at
    cdef readonly Py_ssize_t size, count
    cdef readonly long long first_time, last_time, time
    cdef readonly bint has_message_ids, has_details

    @cython.locals(rows=Rows)
    cpdef Rows successor(self)
    cdef _begin(self, list spares, ContextCache context_cache, Py_ssize_t capacity)
    cpdef put(
        self, int kind, int reason, bint is_routed, Py_ssize_t context, long long time, long long uid,
        long long publish_time, bytes message_ids, long long enqueue_time, long long size, long long depth,
        long long attempt, int priority,
    )
    cpdef put_details(self, long long due_time, long long retry_max, bytes note)
    cpdef put_published(
        self, bint is_routed, Py_ssize_t context, long long time, long long uid, bytes message_ids, long long size,
        int priority,
    )
    cpdef put_short(self, int kind, int reason, Py_ssize_t context, long long depth, int attempt)
    cpdef put_direct_delivery(self, Py_ssize_t enqueue_context, long long context, long long depth)
    cdef Py_ssize_t _begin_record(
        self, Py_ssize_t size, int kind, int reason, int flags, unsigned int number, unsigned long long context
    ) except -1
    cdef _end_record(self, long long time, int flags, bytes message_ids)
    cdef _grow(self, Py_ssize_t needed)
    cpdef Py_ssize_t context_of(
        self, bytes address, str vhost, str queue, str consumer, str connection, int channel
    ) except -1
    cpdef bint is_full(self, Py_ssize_t count) except -1
    cpdef recycle(self, Rows rows)
    cpdef bytes take_unlogged(self)
    cpdef Py_ssize_t extend(self, bytes raw) except -1
    cpdef RowReader reader(self)
    cdef bytes _raw_from(self, Py_ssize_t start, Py_ssize_t count)


cdef long long _limited(long long value) noexcept
cdef unsigned long long _plus_1(long long value) noexcept
