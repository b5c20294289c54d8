cimport cython

from warrenmq.events.row_blocks cimport BlockOfBytes, RowBlocks
from warrenmq.events.row_reader cimport RowReader
from warrenmq.events.rows cimport Rows

ctypedef unsigned char *Octets
ctypedef const unsigned char *Constant
ctypedef long long *Longs
ctypedef int *Ints
ctypedef short *Shorts
ctypedef Py_ssize_t Places[22]
ctypedef unsigned char Spare[256]
ctypedef unsigned long long Word

cdef bytes _IS_TEXT
cdef bytes _WIDTHS
cdef int _NUMBER_OF_COLUMNS
cdef Py_ssize_t _BLOCK
cdef Py_ssize_t _NOWHERE
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
cdef int _PRIORITY


@cython.final
cdef class Layout:
    cdef Py_ssize_t _start
    cdef Py_ssize_t zeros
    cdef list ends
    cdef readonly Py_ssize_t size
    cdef readonly list buffers
    cdef Places flags
    cdef Places values
    cdef Places texts

    @cython.locals(
        buffers=list, number=int, state=int, is_text=int, flag_size=Py_ssize_t, size=Py_ssize_t, zeros=Py_ssize_t,
        text_size=Py_ssize_t,
    )
    cdef _place_all(self, list states, bint is_one_time, Py_ssize_t count, list text_sizes)
    @cython.locals(place=Py_ssize_t)
    cdef Py_ssize_t _place(self, Py_ssize_t size) except -1


@cython.final
cdef class ColumnWriter:
    cdef object _held
    cdef Octets _out
    cdef Py_ssize_t _count
    cdef list _used_kinds
    cdef list _names
    cdef bytearray _stages
    cdef Py_ssize_t _number_of_contexts
    cdef Shorts _staged
    cdef Ints _staged_channels
    cdef Octets _there
    cdef Octets _used
    cdef list _states
    cdef bint _is_one_time
    cdef Places _values
    cdef Places _flag_places
    cdef Places _flags
    cdef Places _texts
    cdef Places _text_ends
    cdef BlockOfBytes _context_bits
    cdef Spare _spare
    cdef unsigned char _of_contexts_any
    cdef unsigned char _of_contexts_all
    cdef unsigned char _of_rows_any
    cdef unsigned char _of_rows_all
    cdef readonly Layout layout
    cdef readonly list nulls

    @cython.locals(is_one_time=bint)
    cpdef write(self, Rows rows, Py_ssize_t head_size, Py_ssize_t end_size)
    cpdef list used_kinds(self)
    @cython.locals(seen=bytearray, part=int, context=Py_ssize_t, number=Py_ssize_t)
    cpdef list used_names(self, str column)
    cpdef Py_ssize_t uids_offset(self)
    cpdef bytes finish(self, bytes head, bytes end)
    @cython.locals(
        count=Py_ssize_t, octets=Octets, names=Shorts, channels=Ints, there=Octets, number=Py_ssize_t, context=tuple,
        bits=int, part=int, value=int,
    )
    cdef _set_stages(self, list contexts)
    cdef list _measure_texts(self, Rows rows)
    @cython.locals(
        first=Py_ssize_t, second=Py_ssize_t, third=Py_ssize_t, fourth=Py_ssize_t, no_first=Py_ssize_t,
        no_second=Py_ssize_t, no_third=Py_ssize_t, no_fourth=Py_ssize_t, no_source=Py_ssize_t,
    )
    cdef list _sum_texts(self, RowReader reader)
    @cython.locals(
        layout=Layout, blocks=RowBlocks, row=Py_ssize_t, count=Py_ssize_t, number=int, end=Py_ssize_t, kind=int
    )
    cdef bint _write_rows(
        self, Rows rows, list text_sizes, Py_ssize_t head_size, Py_ssize_t end_size
    ) except -1
    cdef void _put_values(self, RowBlocks blocks, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    @cython.locals(place=Py_ssize_t)
    cdef void _put(
        self, int column, Py_ssize_t width, Py_ssize_t row, Py_ssize_t count, const void *source
    ) noexcept nogil
    @cython.locals(
        first=int, differing=int, at=Py_ssize_t, context=Py_ssize_t, names=Shorts, channels_of=Ints, there_of=Octets,
        used=Octets, vhosts=Shorts, exchanges=Shorts, routing_keys=Shorts, queues=Shorts, consumers=Shorts,
        connections=Shorts, channels=Ints,
    )
    cdef void _put_contexts(self, RowBlocks blocks, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    @cython.locals(at=Py_ssize_t, there="unsigned char", channel=int, channels=Ints)
    cdef void _put_context(self, Py_ssize_t context, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    @cython.locals(at=Py_ssize_t, names=Shorts)
    cdef void _fill(self, int column, Py_ssize_t row, Py_ssize_t count, short name) noexcept nogil
    @cython.locals(place=Py_ssize_t)
    cdef Shorts _shorts_of(self, int column, Py_ssize_t row) noexcept nogil
    @cython.locals(place=Py_ssize_t)
    cdef Ints _ints_of(self, int column, Py_ssize_t row) noexcept nogil
    @cython.locals(
        at=Py_ssize_t, start=Py_ssize_t, place=Py_ssize_t, of_contexts_any="unsigned char",
        of_contexts_all="unsigned char", of_rows_any="unsigned char", of_rows_all="unsigned char",
    )
    cdef void _put_flags(self, RowBlocks blocks, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    @cython.locals(number=int)
    cdef void _put_bytes(self, Py_ssize_t place, int first, Word octets) noexcept nogil
    @cython.locals(there=int, throughout=int)
    cdef list _found_states(self)
    @cython.locals(words=Py_ssize_t, state=int)
    cdef _count_nulls(self)
    @cython.locals(column=int, row=Py_ssize_t)
    cdef _write_texts(self, RowReader reader)
    cdef void _put_text(
        self, int column, Py_ssize_t row, RowReader reader, Py_ssize_t at, Py_ssize_t size
    ) noexcept nogil
    cdef void _put_source(self, Py_ssize_t row, long long uid) noexcept nogil
    cdef void _flag(self, int column, Py_ssize_t row) noexcept nogil


@cython.locals(moved=Word)
cdef Word _turned(Word octets) noexcept nogil
@cython.locals(changeable=bytearray, fresh=bytes)
cdef Octets _start_of(object memory) except NULL
cdef Octets _bytes(Octets octets, Py_ssize_t at) noexcept nogil
cdef Longs _longs(Octets octets, Py_ssize_t at) noexcept nogil
cdef Ints _ints(Octets octets, Py_ssize_t at) noexcept nogil
cdef Shorts _shorts(Octets octets, Py_ssize_t at) noexcept nogil
@cython.locals(value=Word)
cdef Word _word(Constant octets, Py_ssize_t at) noexcept nogil
@cython.locals(found=Py_ssize_t, place=Py_ssize_t, octet=int)
cdef Py_ssize_t _count_ones(Constant octets, Py_ssize_t at, Py_ssize_t words) noexcept nogil
cdef void _clear(Octets out, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef void _copy_bytes(
    Octets out, Py_ssize_t at, Constant source, Py_ssize_t source_at, Py_ssize_t size
) noexcept nogil
cdef void _copy_values(Octets out, Py_ssize_t at, const void *source, Py_ssize_t size) noexcept nogil
