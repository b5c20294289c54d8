cimport cython

from warrenmq.core.message cimport Message, QueuedMessage, ended_attempts, enqueue_as, make_message

cdef int _APPEND
cdef int _FORGET_ONE
cdef int _PERSISTENT
cdef int _TRACED
cdef int _PUBLISH_TIME
cdef int _EXPIRY
cdef int _ATTEMPTS
cdef int _HAS_DEATHS
cdef int _READ_FLAGS
cdef Py_ssize_t _RECORD_SIZE


@cython.final
cdef class EpochBuffer:
    cdef bytearray _data
    cdef bytearray _spare
    cdef Py_ssize_t _capacity
    cdef Message _last
    cdef readonly Py_ssize_t size

    @cython.locals(
        message=Message, address_size=Py_ssize_t, header_size=Py_ssize_t, body_size=Py_ssize_t, total=Py_ssize_t,
        at="unsigned char *",
    )
    cpdef put_append(self, unsigned int queue, QueuedMessage entry, int flags)
    @cython.locals(at="unsigned char *")
    cpdef put_forget(self, unsigned int queue, long long position)
    cpdef put_forget_range(self, unsigned int queue, long long first, long long last)
    cpdef put_definition(self, bint is_define, bytes encoded)
    cpdef put_events(self, long long first, long long last, bytes rows)
    cpdef put_events_discarded(self, long long up_to)
    cpdef put_seen(self, unsigned long long owner, bytes id, long long number)
    cpdef put_all_seen(self, unsigned long long owner, int how, Py_ssize_t count, bytes ids)
    cpdef put_attempts(self, unsigned int queue, long long position, unsigned int attempts)
    cpdef put_position(self, unsigned int queue, long long next_position)
    @cython.locals(place=Py_ssize_t)
    cpdef Py_ssize_t put_offset(self, unsigned int stream, long long position, bytes tag) except -1
    cpdef move_offset(self, Py_ssize_t place, long long position)
    @cython.locals(size=Py_ssize_t, at="unsigned char *", source="const unsigned char *")
    cdef _put(self, bytes data)
    @cython.locals(at="unsigned char *")
    cdef unsigned char *_reserve(self, Py_ssize_t size) except NULL


@cython.locals(entry=QueuedMessage, message=Message, total=Py_ssize_t, at="unsigned char *", payload=bytearray)
cpdef encode_records(list entries)
@cython.locals(
    found=list, end=Py_ssize_t, offset=Py_ssize_t, address=bytes, header=bytes, body=bytes,
    data="const unsigned char *", position="long long", flags=int, address_size=Py_ssize_t, header_size=Py_ssize_t,
    body_size=Py_ssize_t, header_at=Py_ssize_t, body_at=Py_ssize_t, entry=QueuedMessage, is_wanted=bint,
    fields_at=Py_ssize_t, next_only="long long", at_only=Py_ssize_t,
)
cpdef list decode_records(
    bytes payload, long long above, long long first, bytearray dead, long long restored_below, list only=*
)
@cython.locals(end=Py_ssize_t, message=Message)
cpdef Message restore_message(bytes address, bytes header, bytes body)
@cython.locals(
    found=list, end=Py_ssize_t, offset=Py_ssize_t, start=Py_ssize_t, count=Py_ssize_t, transient=Py_ssize_t,
    first_position="long long", last_position="long long", body_bytes="long long", kept_bytes="long long",
    data="const unsigned char *", position="long long", flags=int, address_size=Py_ssize_t, header_size=Py_ssize_t,
    body_size=Py_ssize_t, size=Py_ssize_t, is_kept=bint, earliest="long long", latest="long long", has_lasting=bint,
    expires_ms="long long",
)
cpdef tuple find_living(bytes payload, long long first, bytearray dead, long long restored_below)
@cython.locals(
    found=list, end=Py_ssize_t, offset=Py_ssize_t, size=Py_ssize_t, position="long long", flags=int,
    address_size=Py_ssize_t, header_size=Py_ssize_t, body_size=Py_ssize_t, is_wanted=bint,
)
cpdef list find_expiring(bytes payload, long long above, long long first, bytearray dead, long long restored_below)
@cython.locals(at=Py_ssize_t)
cdef long long _expiry_at(bytes payload, Py_ssize_t offset, int flags) except -1

cdef int _flags_of(QueuedMessage entry, int flags) noexcept
@cython.locals(flags=int)
cdef int _page_flags_of(QueuedMessage entry) noexcept
@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t fields_size(int flags) noexcept
@cython.locals(message=Message)
cpdef read_fields(bytes data, Py_ssize_t offset, int flags, QueuedMessage entry)
@cython.locals(message=Message, fields=bytes)
cdef bytes _encode_fields(QueuedMessage entry, int flags)
@cython.locals(bits="const unsigned char *")
cdef bint _is_dead(bytearray dead, long long index) except -1
@cython.locals(at="const unsigned char *")
cdef const unsigned char *_pointer(bytes data) except NULL
@cython.locals(
    message=Message, address="const unsigned char *", header="const unsigned char *", body="const unsigned char *",
    address_size=Py_ssize_t, header_size=Py_ssize_t, body_size=Py_ssize_t, blind="const unsigned char *",
    blind_size=Py_ssize_t,
)
cdef unsigned char *_put_record(unsigned char *at, QueuedMessage entry, int flags) except NULL
cdef unsigned char *_put_u32(unsigned char *at, unsigned long long value) noexcept
cdef unsigned char *_put_u64(unsigned char *at, unsigned long long value) noexcept
cdef unsigned long long _get_u32(const unsigned char *at) noexcept
cdef unsigned long long _get_u64(const unsigned char *at) noexcept
cdef unsigned long long _as_u64(unsigned long long value) noexcept
