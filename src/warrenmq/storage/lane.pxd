# The thread's whole life is this C: it may not touch an object of Python, whose interpreter it does not hold.
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
    #define LANE_PAUSE() __builtin_ia32_pause()
    #else
    #define LANE_PAUSE() ((void)0)
    #endif

    typedef struct {
        int wake, ring, handle, error;
        int is_asked, is_asleep;
        volatile int is_ending;
        int64_t look_ns;
        const char *octets;
        size_t size;
        off_t offset;
    } LaneState;

    /* 0, or the error; a write that came to its end too early is one, for a disk that is full tells it so. */
    static int lane_write(LaneState *state) {
    #if defined(__linux__) && defined(RWF_DSYNC)
        struct iovec piece = {(void *)state->octets, state->size};
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

    static void lane_ring(int descriptor) {
        uint64_t count = 1;
        while (write(descriptor, &count, sizeof count) < 0 && errno == EINTR)
            ;
    }

    /* On the loop: there is something to do, which the thread sees by itself unless it sleeps. */
    static void lane_ask(LaneState *state) {
        __atomic_store_n(&state->is_asked, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&state->is_asleep, __ATOMIC_SEQ_CST))
            lane_ring(state->wake);
    }

    static int lane_take(LaneState *state) {
        return __atomic_exchange_n(&state->is_asked, 0, __ATOMIC_SEQ_CST);
    }

    static int64_t lane_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }

    /* Wait until the loop asks: after a small record looking first (see _LOOK_NS). */
    static void lane_wait(LaneState *state) {
        uint64_t count;
        if (state->size < 4096) {
            int64_t until = lane_clock() + state->look_ns;
            do {
                int i;
                for (i = 0; i < 50; i++) {
                    if (lane_take(state))
                        return;
                    LANE_PAUSE();
                }
                sched_yield();
            } while (lane_clock() < until);
        }
        for (;;) {
            __atomic_store_n(&state->is_asleep, 1, __ATOMIC_SEQ_CST);
            if (lane_take(state))
                break;
            if (read(state->wake, &count, sizeof count) < 0 && errno != EINTR)
                break;
        }
        __atomic_store_n(&state->is_asleep, 0, __ATOMIC_SEQ_CST);
    }

    static void lane_serve(LaneState *state) {
        for (;;) {
            lane_wait(state);
            if (state->is_ending)
                return;
            state->error = lane_write(state);
            lane_ring(state->ring);
        }
    }
    """
    ctypedef struct LaneState:
        int wake
        int ring
        int handle
        int error
        int is_ending
        long long look_ns
        const char *octets
        size_t size
        long long offset
    void lane_ask(LaneState *state) nogil
    void lane_serve(LaneState *state) nogil


cdef class Lane:
    cdef LaneState _state
    cdef bytes _record
    cdef object _loop
    cdef object _on_done
    cdef object _thread

    cpdef write(self, int handle, bytes record, long long offset)
