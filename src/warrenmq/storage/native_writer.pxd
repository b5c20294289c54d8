# The thread runs only this C code: it does not hold the interpreter lock, so it must not touch Python objects.
cdef extern from *:
    """
    #include <errno.h>
    #include <sched.h>
    #include <time.h>
    #include <stdint.h>
    #include <sys/types.h>
    #include <sys/uio.h>
    #include <unistd.h>

    #if defined(__x86_64__) || defined(__i386__)
    #define WRITER_PAUSE() __builtin_ia32_pause()
    #else
    #define WRITER_PAUSE() ((void)0)
    #endif

    typedef struct {
        int wake, done, handle, error;
        int is_requested, is_sleeping;
        volatile int is_ending;
        int64_t poll_ns;
        const char *data;
        size_t size;
        off_t offset;
    } WriterState;

    /* Return 0 or errno; a short write means that the disk is full. */
    static int writer_write(WriterState *state) {
    #if defined(__linux__) && defined(RWF_DSYNC)
        struct iovec piece = {(void *)state->data, state->size};
        ssize_t written;
        do
            written = pwritev2(state->handle, &piece, 1, state->offset, RWF_DSYNC);
        while (written < 0 && errno == EINTR);
        if (written < 0)
            return errno;
        return (size_t)written == state->size ? 0 : ENOSPC;
    #else
        return ENOSYS;
    #endif
    }

    static void writer_signal(int descriptor) {
        uint64_t count = 1;
        while (write(descriptor, &count, sizeof count) < 0 && errno == EINTR)
            ;
    }

    /* On the loop: request a write. A thread that polls sees it by itself; one that sleeps is woken. */
    static void writer_request(WriterState *state) {
        __atomic_store_n(&state->is_requested, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&state->is_sleeping, __ATOMIC_SEQ_CST))
            writer_signal(state->wake);
    }

    static int writer_take(WriterState *state) {
        return __atomic_exchange_n(&state->is_requested, 0, __ATOMIC_SEQ_CST);
    }

    static int64_t writer_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* Wait for a request; after a small record poll first (see _POLL_NS). */
    static void writer_wait(WriterState *state) {
        uint64_t count;
        if (state->size < 4096) {
            int64_t until = writer_clock() + state->poll_ns;
            do {
                int i;
                for (i = 0; i < 50; i++) {
                    if (writer_take(state))
                        return;
                    WRITER_PAUSE();
                }
                sched_yield();
            } while (writer_clock() < until);
        }
        for (;;) {
            __atomic_store_n(&state->is_sleeping, 1, __ATOMIC_SEQ_CST);
            if (writer_take(state))
                break;
            if (read(state->wake, &count, sizeof count) < 0 && errno != EINTR)
                break;
        }
        __atomic_store_n(&state->is_sleeping, 0, __ATOMIC_SEQ_CST);
    }

    static void writer_serve(WriterState *state) {
        for (;;) {
            writer_wait(state);
            if (state->is_ending)
                return;
            state->error = writer_write(state);
            writer_signal(state->done);
        }
    }
    """
    ctypedef struct WriterState:
        int wake
        int done
        int handle
        int error
        int is_ending
        long long poll_ns
        const char *data
        size_t size
        long long offset
    void writer_request(WriterState *state) nogil
    void writer_serve(WriterState *state) nogil


cdef class NativeWriter:
    cdef WriterState _state
    cdef bytes _record
    cdef object _loop
    cdef object _on_done
    cdef object _thread

    cpdef write(self, int handle, bytes record, long long offset)
    cpdef int error(self)
