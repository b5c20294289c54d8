cimport cython

from warrenmq.events cimport fields, memory, records
from warrenmq.events.fields cimport Offsets
from warrenmq.events.memory cimport Bytes, ConstBytes, Ints, Shorts
from warrenmq.events.row_reader cimport BlockOfBytes, Marks, RowReader
from warrenmq.events.rows cimport Rows

ctypedef Py_ssize_t BitmapOffsets[16]
ctypedef unsigned long long Word

cdef bytes _IS_TEXT, _WIDTHS
cdef Py_ssize_t _NOT_STORED
cdef Word _BITS, _PAIRS, _FOURS


@cython.final
cdef class ColumnWriter:
    cdef object _buffer
    cdef Bytes _out
    cdef Py_ssize_t _start, _count, _number_of_contexts
    cdef list _used_kinds, _names, _states
    cdef bint _has_equal_times
    cdef bytearray _context_table
    cdef Shorts _context_names
    cdef Ints _context_channels
    cdef Bytes _context_validity, _used_contexts
    cdef Offsets _values, _validity, _texts, _text_sizes, _valid_counts
    cdef BitmapOffsets _bitmaps
    cdef BlockOfBytes _block_validity
    cdef Marks _scratch
    cdef int _any_bits, _all_bits
    cdef readonly Py_ssize_t size
    cdef readonly list buffers, nulls

    cpdef write(self, Rows rows, Py_ssize_t head_size, Py_ssize_t end_size)
    cpdef list used_kinds(self)
    cpdef list used_names(self, str column)
    cpdef Py_ssize_t uids_offset(self)
    cpdef bytes finish(self, bytes head, bytes end)
    @cython.locals(context=tuple, value=int)
    cdef _set_contexts(self, list contexts)
    cdef _measure(self, Rows rows)
    cdef void _put_ids(self, RowReader reader, Py_ssize_t first, Py_ssize_t count) noexcept nogil
    cdef void _put_details(self, RowReader reader, Py_ssize_t first, Py_ssize_t count) noexcept nogil
    cdef void _put_number(self, int column, int width, Py_ssize_t row, long long value) noexcept nogil
    cdef Py_ssize_t _put_text(self, int column, Py_ssize_t row, ConstBytes data, Py_ssize_t at) noexcept nogil
    cdef void _set_valid(self, int column, Py_ssize_t row) noexcept nogil
    cdef bint _write_rows(self, Rows rows, Py_ssize_t head_size, Py_ssize_t end_size) except -1
    cdef Py_ssize_t _lay_out(self, Py_ssize_t start) except -2
    cdef Py_ssize_t _add_buffer(self, Py_ssize_t size) except -1
    cdef Py_ssize_t _reserve(self, Py_ssize_t size) except -1
    cdef _clear(self, Py_ssize_t zeros)
    cdef void _clear_padding(self, Py_ssize_t at) noexcept
    cdef void _put_values(self, RowReader reader, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    cdef void _put(self, int column, Py_ssize_t width, Py_ssize_t row, Py_ssize_t count, const void *source) noexcept nogil
    cdef void _put_contexts(self, RowReader reader, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    cdef void _put_context(self, Py_ssize_t context, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    cdef Shorts _shorts_of(self, int column, Py_ssize_t row) noexcept nogil
    cdef Ints _ints_of(self, int column, Py_ssize_t row) noexcept nogil
    @cython.locals(
        contexts_any="unsigned char", contexts_all="unsigned char", rows_any="unsigned char", rows_all="unsigned char"
    )  # which C compilers turn into vectors
    cdef void _put_validity(self, RowReader reader, Py_ssize_t row, Py_ssize_t count) noexcept nogil
    cdef void _put_bitmap_bytes(self, Py_ssize_t at, int first, Word columns) noexcept nogil
    cdef bint _is_as_assumed(self, bint has_equal_times) except -1
    cdef _count_nulls(self)


cdef Word _transpose(Word rows) noexcept nogil
@cython.locals(found=Py_ssize_t, bits=int)  # the same
cdef Py_ssize_t _count_ones(ConstBytes data, Py_ssize_t at, Py_ssize_t words) noexcept nogil
