// Stand-ins for GL's functions that note when each was called and when it returned. What is not
// known to be without a result is handed on, as in gl_calls.c, which knows no signatures either;
// the rest does nothing while `idle`, so that what passes is the caller's time.
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

typedef uintptr_t (*Function)(INTEGERS(uintptr_t), FLOATS(double));

#define FUNCTIONS 32
#define EVENTS 65536
static Function functions[FUNCTIONS];
static uintptr_t answers[FUNCTIONS];
int64_t idle, events;
int64_t numbers[EVENTS], begun[EVENTS], ended[EVENTS];

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

#define STAND_IN(n)                                                                              \
    static uintptr_t stand_in_##n(INTEGERS(uintptr_t), FLOATS(double)) {                           \
        int64_t start = now();                                                                   \
        uintptr_t result = answers[n];                                                           \
        if (!idle) result = functions[n](GIVEN_INTEGERS, GIVEN_FLOATS);                          \
        if (events < EVENTS) {                                                                   \
            numbers[events] = n;                                                                 \
            begun[events] = start;                                                               \
            ended[events++] = now();                                                             \
        }                                                                                        \
        return result;                                                                           \
    }
#define NAME(n) stand_in_##n,
#define EIGHT(DO, a, b, c, d, e, f, g, h) DO(a) DO(b) DO(c) DO(d) DO(e) DO(f) DO(g) DO(h)
#define ALL(DO)                                                                                  \
    EIGHT(DO, 0, 1, 2, 3, 4, 5, 6, 7) EIGHT(DO, 8, 9, 10, 11, 12, 13, 14, 15)                      \
    EIGHT(DO, 16, 17, 18, 19, 20, 21, 22, 23) EIGHT(DO, 24, 25, 26, 27, 28, 29, 30, 31)

ALL(STAND_IN)
static const Function stand_ins[FUNCTIONS] = {ALL(NAME)};

// What stands in for the function at `address`, by its number; it returns `answer` while `idle`.
void *stand_in(int number, void *address, uintptr_t answer) {
    functions[number] = (Function)address;
    answers[number] = answer;
    return (void *)stand_ins[number];
}
