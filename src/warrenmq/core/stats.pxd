cimport cython


@cython.final
cdef class Stats:
    cdef public long long published
    cdef public long long delivered
    cdef public long long redelivered
    cdef public long long acked
    cdef public long long confirmed
    cdef public long long returned
    cdef public long long unroutable
    cdef public long long deduplicated
    cdef public list dropped
    cdef public list dead_lettered
    cdef public long long dead_letter_cycles
    cdef public long long rejected_publishes
    cdef public long long consumer_timeouts
    cdef public long long retried
    cdef public long long reports
    cdef public long long scheduled
    cdef public long long ready
    cdef public long long unacked
    cdef public long long consumers
    cdef public long long held_bytes
    cdef public long long shared_bytes
    cdef public long long transit_bytes
    cdef public long long uncommitted_bytes
    cdef public long long output_bytes
    cdef public long long route_bytes
    cdef public long long id_bytes
    cdef public long long expiry_bytes
    cdef public long long definition_bytes
    cdef public long long unfinished_limit
    cdef public long long bytes_in
    cdef public long long bytes_out
    cdef public long long connections_opened
    cdef public long long connections_closed

    cpdef long long memory(self) noexcept
    cpdef bint exceeds_unfinished(self, long long coming) noexcept


@cython.final
cdef class Traffic:
    cdef public long long bytes_in
    cdef public long long bytes_out


@cython.final
cdef class Revision:
    cdef public long long number
