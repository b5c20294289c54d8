cimport cython

from warrenmq.events.row_reader cimport RowReader
from warrenmq.events.rows cimport Rows

ctypedef unsigned char *Octets
ctypedef long long *Longs
ctypedef int *Ints
ctypedef short *Shorts
ctypedef Py_ssize_t Places[21]
ctypedef unsigned long long Word

cdef Py_ssize_t _STAGE_PARTS
cdef int _FLAGGED_COUNT
cdef Word _BITS
cdef Word _PAIRS
cdef Word _FOURS
cdef int _TIME
cdef int _KIND
cdef int _UID
cdef int _MESSAGE_ID
cdef int _PUBLISH_TIME
cdef int _ENQUEUE_TIME
cdef int _VHOST
cdef int _EXCHANGE
cdef int _ROUTING_KEY
cdef int _QUEUE
cdef int _CONSUMER
cdef int _CONNECTION
cdef int _CHANNEL
cdef int _SIZE
cdef int _ATTEMPT
cdef int _REASON
cdef int _CORRELATION_ID
cdef int _TRACE_ID
cdef int _SPAN_ID
cdef int _SOURCE_UID
cdef int _DEPTH
cdef long long _ZEROS


@cython.final
cdef class ColumnWriter:
    cdef bytearray _memory
    cdef Py_ssize_t _count
    cdef Places _text_ends
    cdef Places _flagged
    cdef Places _flagged_nulls
    cdef readonly Places flags
    cdef readonly Places values
    cdef readonly Places texts
    cdef readonly Places nulls

    cpdef write(self, Rows rows)
    cpdef Py_ssize_t text_size(self, int column)
    @cython.locals(size=Py_ssize_t, found=bytes, out=Octets, start="const unsigned char *", last="const unsigned char *")
    cpdef bytes body(self, object layout, bytes head, bytes end)
    @cython.locals(memory=Octets, places=Longs, count=Py_ssize_t, piece=Py_ssize_t, size=Py_ssize_t)
    cdef _copy(self, object pieces, Octets out)
    @cython.locals(first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t, fourth=Py_ssize_t)
    cdef list _sum_texts(self, RowReader reader)
    cdef _make_room(self, Py_ssize_t count, list text_sums)
    @cython.locals(
        memory=bytearray, staged=Ints, times=Longs, kinds=Octets, uids=Longs, publish_times=Longs, enqueue_times=Longs,
        vhosts=Shorts, exchanges=Shorts, routing_keys=Shorts, queues=Shorts, consumers=Shorts, connections=Shorts,
        channels=Ints, sizes=Ints, attempts=Ints, reasons=Octets, depths=Ints, flags=Octets, row=Py_ssize_t,
        at=Py_ssize_t, there=Word, first=Word, second=Word, missing=int,
    )
    cdef _write_rows(self, RowReader reader, bytes stages, bint has_texts)
    @cython.locals(number=int)
    cdef void _put_flags(self, Octets flags, Py_ssize_t at, Word first, Word second) noexcept nogil
    @cython.locals(size=Py_ssize_t, number=int, found=Py_ssize_t, start=Py_ssize_t, at=Py_ssize_t)
    cdef void _count_nulls(self, Octets flags) noexcept nogil
    @cython.locals(
        memory=Octets, sources=Longs, message_ids=Ints, correlation_ids=Ints, trace_ids=Ints, span_ids=Ints,
        row=Py_ssize_t, column=int,
    )
    cdef _write_texts(self, RowReader reader)
    @cython.locals(place=Py_ssize_t)
    cdef void _put_text(
        self, Octets memory, int column, Py_ssize_t row, RowReader reader, Py_ssize_t at, Py_ssize_t size
    ) noexcept nogil
    @cython.locals(
        values=Longs, flags=Octets, count=Py_ssize_t, found=Py_ssize_t, start=Py_ssize_t, row=Py_ssize_t, bits=int
    )
    cdef _flag_longs(self, int column)


@cython.locals(moved=Word)
cdef Word _turned(Word octets) noexcept nogil
cdef int _ones(int octet) noexcept nogil
cdef Octets _octets(bytearray memory) except NULL
cdef Longs _places(object pieces) except NULL
cdef Longs _longs(bytearray memory, Py_ssize_t at) except NULL
cdef Ints _ints(bytearray memory, Py_ssize_t at) except NULL
cdef Shorts _shorts(bytearray memory, Py_ssize_t at) except NULL
cdef Octets _bytes(bytearray memory, Py_ssize_t at) except NULL
@cython.locals(data="const unsigned char *")
cdef Ints _ints_of(bytes octets) except NULL
cdef void _copy_octets(
    Octets out, Py_ssize_t at, const unsigned char *source, Py_ssize_t source_at, Py_ssize_t size
) noexcept nogil
