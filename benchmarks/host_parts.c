// Stand-ins for GL's functions that note when each was called and when it returned. What is not
// known to be without a result is handed on, as in gl_calls.c, which knows no signatures either;
// the rest does nothing while `idle`, so that what passes is the caller's time.
#include "arguments.h"

typedef uintptr_t (*Function)(INTEGERS(uintptr_t), FLOATS(double));

#define FUNCTIONS 32
#define EVENTS 65536
static Function functions[FUNCTIONS];
static uintptr_t answers[FUNCTIONS];
int64_t idle, events;
int64_t numbers[EVENTS], begun[EVENTS], ended[EVENTS];

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
