cimport cython

from warrenmq.events cimport fields, memory
from warrenmq.events.fields cimport Offsets
from warrenmq.events.memory cimport Bytes, ConstBytes, Ints, Longs, Shorts
from warrenmq.events.row_reader cimport BlockOfBytes, RowReader
from warrenmq.events.rows cimport Rows

ctypedef Py_ssize_t BitmapOffsets[16]
ctypedef unsigned char Scratch[256]
ctypedef unsigned long long Word

cdef bytes _IS_TEXT
cdef bytes _WIDTHS
cdef Py_ssize_t _BLOCK
cdef Py_ssize_t _NOT_STORED
cdef Word _BITS
cdef Word _PAIRS
cdef Word _FOURS


@cython.final
cdef class Layout:
    cdef Py_ssize_t _start
    cdef Py_ssize_t zeros
    cdef list ends
    cdef readonly Py_ssize_t size
    cdef readonly list buffers
    cdef Offsets validity
    cdef Offsets values
    cdef Offsets texts

    @cython.locals(buffers=list, number=int, state=int, is_text=int, bitmap_size=Py_ssize_t, size=Py_ssize_t, zeros=Py_ssize_t)
    cdef _add_all(self, list states, bint has_equal_times, Py_ssize_t count, list text_sizes)
    @cython.locals(offset=Py_ssize_t)
    cdef Py_ssize_t _add(self, Py_ssize_t size) except -1


@cython.final
cdef class ColumnWriter:
    cdef object _buffer
    cdef Bytes _out
    cdef Py_ssize_t _count
    cdef list _used_kinds
    cdef list _names
    cdef bytearray _context_table
    cdef Py_ssize_t _number_of_contexts
    cdef Shorts _context_names
    cdef Ints _context_channels
    cdef Bytes _context_validity
    cdef Bytes _used_contexts
    cdef list _states
    cdef bint _has_equal_times
    cdef Offsets _values
    cdef Offsets _validity
    cdef Offsets _texts
    cdef Offsets _text_sizes
    cdef Offsets _valid_counts
    cdef BitmapOffsets _bitmaps
    cdef BlockOfBytes _block_validity
    cdef Scratch _scratch
    cdef unsigned char _contexts_any
    cdef unsigned char _contexts_all
    cdef unsigned char _rows_any
    cdef unsigned char _rows_all
    cdef readonly Layout layout
    cdef readonly list nulls

    @cython.locals(has_equal_times=bint)
    cpdef write(self, Rows rows, Py_ssize_t head_size, Py_ssize_t end_size)
    cpdef list used_kinds(self)
    @cython.locals(seen=bytearray, part=int, context=Py_ssize_t, number=Py_ssize_t)
    cpdef list used_names(self, str column)
    cpdef Py_ssize_t uids_offset(self)
    cpdef bytes finish(self, bytes head, bytes end)
    @cython.locals(
        count=Py_ssize_t, table=Bytes, names=Shorts, channels=Ints, number=Py_ssize_t, context=tuple, bits=int,
        part=int, value=int,
    )
    cdef _set_contexts(self, list contexts)
    @cython.locals(reader=RowReader, valid=Py_ssize_t)
    cdef list _measure_texts(self, Rows rows)
    @cython.locals(at=Py_ssize_t, repeats=Py_ssize_t, block=Py_ssize_t, row=Py_ssize_t)
    cdef void _measure_rows(self, RowReader reader) noexcept nogil
    cdef void _measure_ids(self, ConstBytes data, Py_ssize_t at, Py_ssize_t rows) noexcept nogil
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _measure_text(self, int column, ConstBytes data, Py_ssize_t at, Py_ssize_t rows) noexcept nogil
    @cython.locals(at=Py_ssize_t, block=Py_ssize_t, row=Py_ssize_t)
    cdef void _measure_details(self, RowReader reader) noexcept nogil
    @cython.locals(
        layout=Layout, reader=RowReader, row=Py_ssize_t, count=Py_ssize_t, number=int, end=Py_ssize_t, kind=int
    )
    cdef bint _write_rows(self, Rows rows, list text_sizes, Py_ssize_t head_size, Py_ssize_t end_size) except -1
    cdef void _put_values(self, RowReader reader, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    cdef void _put(self, int column, Py_ssize_t width, Py_ssize_t row, Py_ssize_t count, const void *source) noexcept nogil
    @cython.locals(
        first="unsigned int", differing="unsigned int", at=Py_ssize_t, context=Py_ssize_t, names=Shorts,
        channels_of=Ints, validity_of=Bytes, used=Bytes, vhosts=Shorts, exchanges=Shorts, routing_keys=Shorts,
        queues=Shorts, consumers=Shorts, connections=Shorts, channels=Ints,
    )
    cdef void _put_contexts(self, RowReader reader, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    @cython.locals(at=Py_ssize_t, part=int, validity="unsigned char", channel=int, channels=Ints, name=short, names=Shorts)
    cdef void _put_context(self, Py_ssize_t context, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    cdef Shorts _shorts_of(self, int column, Py_ssize_t row) noexcept nogil
    cdef Ints _ints_of(self, int column, Py_ssize_t row) noexcept nogil
    @cython.locals(
        at=Py_ssize_t, start=Py_ssize_t, contexts_any="unsigned char", contexts_all="unsigned char",
        rows_any="unsigned char", rows_all="unsigned char",
    )
    cdef void _put_validity(self, RowReader reader, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    @cython.locals(number=int)
    cdef void _put_bitmap_bytes(self, Py_ssize_t at, int first, Word columns) noexcept nogil
    @cython.locals(any_bits=int, all_bits=int)
    cdef list _found_states(self)
    @cython.locals(words=Py_ssize_t, state=int)
    cdef _count_nulls(self)
    @cython.locals(column=int)
    cdef _write_texts(self, RowReader reader)
    @cython.locals(row=Py_ssize_t, first=Py_ssize_t, count=Py_ssize_t, at=Py_ssize_t)
    cdef void _put_ids(self, RowReader reader) noexcept nogil
    @cython.locals(column=int)
    cdef _write_details(self, RowReader reader)
    cdef _clear(self, int column)
    @cython.locals(row=Py_ssize_t, first=Py_ssize_t, count=Py_ssize_t, at=Py_ssize_t)
    cdef void _put_details(self, RowReader reader) noexcept nogil
    cdef void _put_due_time(self, Py_ssize_t row, long long time) noexcept nogil
    cdef void _put_retry_max(self, Py_ssize_t row, int number) noexcept nogil
    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _put_text(self, int column, Py_ssize_t row, ConstBytes data, Py_ssize_t at) noexcept nogil
    cdef void _put_source(self, Py_ssize_t row, long long uid) noexcept nogil
    cdef void _set_valid(self, int column, Py_ssize_t row) noexcept nogil


@cython.locals(moved=Word)
cdef Word _transpose(Word rows) noexcept nogil
@cython.locals(found=Py_ssize_t, place=Py_ssize_t, bits=int)
cdef Py_ssize_t _count_ones(ConstBytes data, Py_ssize_t at, Py_ssize_t words) noexcept nogil
