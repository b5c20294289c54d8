cimport cython

from warrenmq.events.row_reader cimport RowReader, check_rows, used_scenes
from warrenmq.events.texts cimport make_texts

ctypedef size_t Places[777]  # three times _PLACES
ctypedef Py_ssize_t Numbers[259]

cdef Py_ssize_t _FIRST_CAPACITY
cdef Py_ssize_t _KEPT_CAPACITY
cdef Py_ssize_t _SPARES
cdef long long _HIGHEST
cdef int _CODES
cdef int _PROBES
cdef int _PLACES
cdef size_t _MIX
cdef size_t _64_BITS
cdef int _TEXTS
cdef int _SAME_TEXTS
cdef int _IS_ROUTED
cdef int _BRIEF
cdef Py_ssize_t _RECORD_SIZE
cdef Py_ssize_t _BRIEF_SIZE
cdef Py_ssize_t _FULL_NAMES


@cython.final
cdef class Trace:
    cdef readonly long long uid
    cdef readonly long long publish_time
    cdef readonly bytes texts


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
    cdef Places _found
    cdef Numbers _found_numbers
    cdef list _held
    cdef tuple _glossary
    cdef bytes _last_texts
    cdef bint _is_followable
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
    )
    cpdef bint may_be_brief(self) noexcept
    @cython.locals(data="unsigned char *")
    cpdef put_brief(self, int kind, int reason, Py_ssize_t scene, long long depth, int attempt)
    @cython.locals(
        first=size_t, second=size_t, third=size_t, slot=Py_ssize_t, probe=Py_ssize_t, at=Py_ssize_t
    )
    cpdef Py_ssize_t find_scene(self, bytes address, object one, object other) noexcept
    @cython.locals(first=size_t, second=size_t, third=size_t, slot=Py_ssize_t, at=Py_ssize_t)
    cpdef Py_ssize_t note_scene(self, Py_ssize_t scene, bytes address, object one, object other) except -1
    @cython.locals(probe=Py_ssize_t)
    cdef Py_ssize_t _free_slot(self, Py_ssize_t slot, Py_ssize_t scene) noexcept
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
    @cython.locals(at=Py_ssize_t)
    cdef _forget_found(self)
    cdef _grow(self, Py_ssize_t needed)
    cdef bytes _raw_from(self, Py_ssize_t start, Py_ssize_t count)
    cdef tuple _glossary_of(self, list scenes)


cdef bytes _texts_of(RowReader reader)
cdef long long _limited(long long value) noexcept
@cython.locals(mixed=size_t)
cdef Py_ssize_t _slot_of(size_t first, size_t second, size_t third) noexcept
cdef size_t _place_of(object thing) noexcept
cdef void _put_record(
    unsigned char *data,
    Py_ssize_t at,
    int kind,
    int reason,
    int flags,
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
cdef void _put_u32(unsigned char *data, Py_ssize_t at, unsigned int value) noexcept
cdef void _put_i64(unsigned char *data, Py_ssize_t at, long long value) noexcept
@cython.locals(source="const unsigned char *")
cdef void _put_octets(unsigned char *data, Py_ssize_t at, bytes octets, Py_ssize_t size) noexcept
