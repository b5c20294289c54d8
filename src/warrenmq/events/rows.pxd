cimport cython

from warrenmq.events cimport memory
from warrenmq.events.context_cache cimport ContextCache
from warrenmq.events.memory cimport Bytes
from warrenmq.events.message_ids cimport clean_text, pack_message_ids
from warrenmq.events.row_reader cimport RowReader, check_rows, used_contexts

cdef Py_ssize_t _FIRST_CAPACITY
cdef Py_ssize_t _KEPT_CAPACITY
cdef Py_ssize_t _SPARES
cdef long long _MAX_INT
cdef int _CODES
cdef int _HAS_IDS
cdef int _SAME_IDS
cdef int _ROUTED_FOLLOWS
cdef int _IS_SHORT
cdef int _DELIVERED_FOLLOWS
cdef int _IS_PUBLISHED
cdef int _HAS_DETAILS
cdef Py_ssize_t _FULL_SIZE
cdef Py_ssize_t _SHORT_SIZE
cdef Py_ssize_t _DIRECT_SIZE
cdef Py_ssize_t _PUBLISHED_SIZE
cdef Py_ssize_t _DETAILS_SIZE
cdef int _PUBLISHED
cdef int _ENQUEUED
cdef Py_ssize_t _NAME_LIMIT
cdef Py_ssize_t _FEW_CONTEXTS


@cython.final
cdef class Rows:
    cdef bytearray _data
    cdef list _spares
    cdef Py_ssize_t _expected
    cdef Py_ssize_t _capacity
    cdef list _names
    cdef dict _numbers
    cdef list _contexts
    cdef dict _context_numbers
    cdef readonly ContextCache context_cache
    cdef tuple _row_header
    cdef bytes _last_message_ids
    cdef Py_ssize_t _logged_size
    cdef Py_ssize_t _logged_count
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly long long first_time
    cdef readonly long long last_time
    cdef readonly long long time
    cdef readonly bint has_message_ids
    cdef readonly bint has_details
    cdef Py_ssize_t _record_at

    @cython.locals(data=Bytes, at=Py_ssize_t, room=Py_ssize_t, flags=int)
    cpdef put(
        self,
        int kind,
        int reason,
        bint is_routed,
        Py_ssize_t context,
        long long time,
        long long uid,
        long long publish_time,
        bytes message_ids,
        long long enqueue_time,
        long long size,
        long long depth,
        long long attempt,
        int priority,
    )
    @cython.locals(data=Bytes, at=Py_ssize_t, length=Py_ssize_t)
    cpdef put_details(self, long long due_time, long long retry_max, bytes note)
    @cython.locals(data=Bytes, at=Py_ssize_t, room=Py_ssize_t, flags=int)
    cpdef put_published(
        self, bint is_routed, Py_ssize_t context, long long time, long long uid, bytes message_ids, long long size,
        int priority,
    )
    @cython.locals(data=Bytes)
    cdef _end_record(self, long long time, int flags, bytes message_ids)
    @cython.locals(data=Bytes, at=Py_ssize_t)
    cpdef put_short(self, int kind, int reason, Py_ssize_t context, long long depth, int attempt)
    @cython.locals(data=Bytes, at=Py_ssize_t)
    cpdef put_direct_delivery(self, Py_ssize_t enqueue_context, Py_ssize_t context, long long depth)
    @cython.locals(key_at=Py_ssize_t, exchange=Py_ssize_t, routing_key=Py_ssize_t)
    cpdef Py_ssize_t context_of(
        self, bytes address, str vhost, str queue, str consumer, str connection, int channel
    ) except -1
    cpdef bint is_full(self, Py_ssize_t count) except -1
    @cython.locals(taken=Rows)
    cpdef Rows take(self)
    cpdef recycle(self, Rows rows)
    cpdef bytes take_unlogged(self)
    @cython.locals(reader=RowReader, row=Py_ssize_t, read=Py_ssize_t, ids_at=Py_ssize_t)
    cpdef Py_ssize_t extend(self, bytes raw) except -1
    cpdef RowReader reader(self)
    cpdef list names(self)
    cpdef list contexts(self)
    @cython.locals(reader=RowReader, row=Py_ssize_t, count=Py_ssize_t)
    cpdef list events(self)
    cdef _begin(self)
    cdef Py_ssize_t _number_of(self, str name) except -1
    cdef _add_name(self, object name)
    cdef _grow(self, Py_ssize_t needed)
    cdef bytes _raw_from(self, Py_ssize_t start, Py_ssize_t count)


cdef long long _limited(long long value) noexcept
