// Stand-ins for GL's functions, each of which notes how often it was called and for how long.
// They know no signatures: what may hold an argument is handed on as it came, the integer
// registers, the floating-point registers and the first words of the stack.
#include "arguments.h"
#define STACK(T) T s0, T s1, T s2, T s3, T s4, T s5, T s6, T s7
#define GIVEN_STACK s0, s1, s2, s3, s4, s5, s6, s7

typedef uintptr_t (*Function)(INTEGERS(uintptr_t), FLOATS(double), STACK(uintptr_t));

#define MOST 768
static Function functions[MOST];
int64_t calls[MOST], nanoseconds[MOST];

#define STAND_IN(n)                                                                              \
    static uintptr_t stand_in_##n(INTEGERS(uintptr_t), FLOATS(double), STACK(uintptr_t)) {         \
        int64_t start = now();                                                                   \
        uintptr_t result = functions[0x##n](GIVEN_INTEGERS, GIVEN_FLOATS, GIVEN_STACK);            \
        nanoseconds[0x##n] += now() - start;                                                     \
        calls[0x##n] += 1;                                                                       \
        return result;                                                                           \
    }
#define NAME(n) stand_in_##n,
#define SIXTEEN(DO, n)                                                                           \
    DO(n##0) DO(n##1) DO(n##2) DO(n##3) DO(n##4) DO(n##5) DO(n##6) DO(n##7)                        \
    DO(n##8) DO(n##9) DO(n##a) DO(n##b) DO(n##c) DO(n##d) DO(n##e) DO(n##f)
#define MANY(DO, n)                                                                              \
    SIXTEEN(DO, n##0) SIXTEEN(DO, n##1) SIXTEEN(DO, n##2) SIXTEEN(DO, n##3) SIXTEEN(DO, n##4)      \
    SIXTEEN(DO, n##5) SIXTEEN(DO, n##6) SIXTEEN(DO, n##7) SIXTEEN(DO, n##8) SIXTEEN(DO, n##9)      \
    SIXTEEN(DO, n##a) SIXTEEN(DO, n##b) SIXTEEN(DO, n##c) SIXTEEN(DO, n##d) SIXTEEN(DO, n##e)      \
    SIXTEEN(DO, n##f)

MANY(STAND_IN, 0) MANY(STAND_IN, 1) MANY(STAND_IN, 2)
static const Function stand_ins[MOST] = {MANY(NAME, 0) MANY(NAME, 1) MANY(NAME, 2)};

// What stands in for the function at `address`, by its number; 0 where there are no more.
void *stand_in(int number, void *address) {
    if (number < 0 || number >= MOST) return 0;
    functions[number] = (Function)address;
    return (void *)stand_ins[number];
}
