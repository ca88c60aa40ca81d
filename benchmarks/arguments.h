// How this machine passes the first arguments of a function, whatever its signature is: in integer
// and in floating-point registers. And the clock that stand-ins for GL's functions are timed by.
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__) && !defined(_WIN32)
#define INTEGERS(T) T i0, T i1, T i2, T i3, T i4, T i5
#define GIVEN_INTEGERS i0, i1, i2, i3, i4, i5
#elif defined(__aarch64__) && !defined(__APPLE__)
#define INTEGERS(T) T i0, T i1, T i2, T i3, T i4, T i5, T i6, T i7
#define GIVEN_INTEGERS i0, i1, i2, i3, i4, i5, i6, i7
#else
#error "how this machine passes arguments is not known here"
#endif
#define FLOATS(T) T d0, T d1, T d2, T d3, T d4, T d5, T d6, T d7
#define GIVEN_FLOATS d0, d1, d2, d3, d4, d5, d6, d7

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}
