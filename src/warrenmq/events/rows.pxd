cimport cython

from warrenmq.events.row_reader cimport RowReader, check_rows, used_scenes
from warrenmq.events.scene_finder cimport SceneFinder
from warrenmq.events.texts cimport make_texts

cdef Py_ssize_t _FIRST_CAPACITY
cdef Py_ssize_t _KEPT_CAPACITY
cdef Py_ssize_t _SPARES
cdef long long _HIGHEST
cdef int _CODES
cdef int _TEXTS
cdef int _SAME_TEXTS
cdef int _IS_ROUTED
cdef int _BRIEF
cdef int _IS_PASSED
cdef int _IS_NEW
cdef Py_ssize_t _RECORD_SIZE
cdef Py_ssize_t _BRIEF_SIZE
cdef Py_ssize_t _PASSED_SIZE
cdef Py_ssize_t _NEW_SIZE
cdef int _PUBLISHED
cdef int _ENQUEUED
cdef Py_ssize_t _FULL_NAMES
cdef Py_ssize_t _FEW_SCENES


@cython.final
cdef class Trace:
    cdef readonly long long uid
    cdef readonly long long publish_time
    cdef readonly bytes texts
    cdef readonly int priority


@cython.final
cdef class Rows:
    cdef bytearray _data
    cdef list _spares
    cdef Py_ssize_t _expected
    cdef Py_ssize_t _capacity
    cdef list _names
    cdef dict _numbers
    cdef list _scenes
    cdef dict _scene_numbers
    cdef readonly SceneFinder finder
    cdef tuple _glossary
    cdef bytes _last_texts
    cdef Py_ssize_t _logged_size
    cdef Py_ssize_t _logged_count
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly long long first_time
    cdef readonly long long last_time
    cdef readonly long long time
    cdef readonly bint has_texts

    cpdef add(
        self,
        int kind,
        long long time,
        Trace trace,
        bytes address,
        str vhost,
        str queue,
        str consumer,
        str connection,
        int channel,
        long long enqueue_time,
        long long size,
        int attempt,
        int reason,
        long long depth,
    )
    @cython.locals(data="unsigned char *", room=Py_ssize_t, flags=int)
    cpdef put(
        self,
        int kind,
        int reason,
        bint is_routed,
        Py_ssize_t scene,
        long long time,
        long long uid,
        long long publish_time,
        bytes texts,
        long long enqueue_time,
        long long size,
        long long depth,
        long long attempt,
        int priority,
    )
    @cython.locals(data="unsigned char *", room=Py_ssize_t, flags=int)
    cpdef put_new(
        self, bint is_routed, Py_ssize_t scene, long long time, long long uid, bytes texts, long long size,
        int priority,
    )
    cdef _end_record(self, long long time, int flags, bytes texts)
    @cython.locals(data="unsigned char *")
    cpdef put_brief(self, int kind, int reason, Py_ssize_t scene, long long depth, int attempt)
    @cython.locals(data="unsigned char *")
    cpdef put_passed(self, Py_ssize_t came, Py_ssize_t scene, long long depth)
    @cython.locals(key_at=Py_ssize_t, exchange=Py_ssize_t, routing_key=Py_ssize_t)
    cpdef Py_ssize_t scene_of(
        self, bytes address, str vhost, str queue, str consumer, str connection, int channel
    ) except -1
    cpdef bint is_full(self, Py_ssize_t count) except -1
    @cython.locals(taken=Rows)
    cpdef Rows take(self)
    cpdef reuse(self, Rows rows)
    cpdef bytes unlogged(self)
    @cython.locals(reader=RowReader)
    cpdef Py_ssize_t extend(self, bytes raw) except -1
    cpdef RowReader reader(self)
    cpdef list names(self)
    cpdef list scenes(self)
    @cython.locals(reader=RowReader)
    cpdef list events(self)
    cdef _begin(self)
    cdef Py_ssize_t _number_of(self, str name) except -1
    cdef _learn(self, object name)
    cdef _grow(self, Py_ssize_t needed)
    cdef bytes _raw_from(self, Py_ssize_t start, Py_ssize_t count)


cdef bytes _texts_of(RowReader reader)
cdef long long _limited(long long value) noexcept
cdef void _put_record(
    unsigned char *data,
    Py_ssize_t at,
    int kind,
    int reason,
    int flags,
    int priority,
    unsigned int scene,
    long long time,
    long long uid,
    long long publish_time,
    long long enqueue_time,
    unsigned int size,
    unsigned int depth,
    unsigned int attempt,
) noexcept
cdef void _put_brief(
    unsigned char *data, Py_ssize_t at, int kind, int reason, unsigned int scene, unsigned int depth, int attempt
) noexcept
cdef void _put_passed(
    unsigned char *data, Py_ssize_t at, unsigned int came, unsigned int scene, unsigned int depth
) noexcept
cdef void _put_new(
    unsigned char *data,
    Py_ssize_t at,
    int flags,
    int priority,
    unsigned int scene,
    long long time,
    long long uid,
    unsigned int size,
) noexcept
cdef void _put_u32(unsigned char *data, Py_ssize_t at, unsigned int value) noexcept
cdef void _put_i64(unsigned char *data, Py_ssize_t at, long long value) noexcept
@cython.locals(source="const unsigned char *")
cdef void _put_bytes(unsigned char *data, Py_ssize_t at, bytes octets, Py_ssize_t size) noexcept
