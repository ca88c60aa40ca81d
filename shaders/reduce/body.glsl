// The reduction of the numbers of a result, in a fixed order: first within runs of numbers, then of the runs.
// With WIDE four numbers are fetched at once: neighbours along the reduced axis or, with COLUMNS,
// neighbouring results. With ARG the result is the index of the extreme, the first of several or with LAST
// the last; NaN is the most extreme. AT_ONCE numbers, 4 or 2, are fetched before they are reduced, with ARG
// FETCHES numbers.
//
// The host generates the operands, their fetches, the expressions, and the type: NUMBER, float or int, and
// its vector NUMBERS; IDENTITY, the identity element; SETTLED(x), x wrapped to the result's type.
// The includer defines AT(x, i), the i-th number of x or, with WIDE, the i-th vec4.
#ifndef KIND
#define KIND 0  // 0: sum, 1: product, 2: maximum, 3: minimum
#endif
#ifndef COLUMNS
#define COLUMNS 0
#endif
#ifndef WIDE
#define WIDE 0
#endif
#ifndef ARG
#define ARG 0
#endif
#ifndef LAST
#define LAST 0
#endif
#ifndef AT_ONCE
#define AT_ONCE 4
#endif
#ifndef FETCHES
#define FETCHES 4
#endif
#define RUN 256  // numbers of a run, so that sums one by one, in a run and of runs, stay short
#include "common/nan.glsl"
#include "common/float_key.glsl"
#include "reduce/walk.glsl"
#include <operands>
uniform int results, extent, chunk;

#if WIDE
#define STEP 4
uniform int spread[OPERANDS];  // 1: its four numbers are neighbours, 0: they are one number
#define FETCH(operand, k, FOUR) \
    (spread[k] == 1 ? AT(operand, at[k] >> 2) : FOUR(AT(operand, at[k] >> 2)[at[k] & 3]))
#else
#define STEP 1
#define FETCH(operand, k, FOUR) AT(operand, at[k])
#endif

// The more extreme of two, NaN if either is.
#if KIND == 2
float extreme(float a, float b) {
    return greater(a, b);
}

int extreme(int a, int b) {
    return max(a, b);
}
#else
float extreme(float a, float b) {
    return is_nan(a) ? a : is_nan(b) ? b : min(a, b);
}

int extreme(int a, int b) {
    return min(a, b);
}
#endif

NUMBER join(NUMBER a, NUMBER b) {
#if KIND == 0
    return a + b;
#elif KIND == 1
    return a * b;
#else
    return extreme(a, b);
#endif
}

NUMBERS join(NUMBERS a, NUMBERS b) {
#if KIND == 0
    return a + b;
#elif KIND == 1
    return a * b;
#else
    return NUMBERS(join(a.x, b.x), join(a.y, b.y), join(a.z, b.z), join(a.w, b.w));
#endif
}

#include <prologue>
#if ARG
struct Extreme {
    int key;  // greater for a more extreme number
    int at;
};
#define VALUE Extreme
#define START Extreme(-0x7fffffff - 1, LAST == 1 ? -1 : 0x7fffffff)

// An integer whose order is that of the numbers, with NaN the most extreme.
int key_of(float x) {
    int key = float_key(floatBitsToInt(x));
    return KIND == 2 || is_nan(x) ? key : ~key;
}

int key_of(int x) {
    return KIND == 2 ? x : ~x;
}

Extreme join(Extreme a, Extreme b) {
    bool second_wins = b.key > a.key || (b.key == a.key && (a.at < b.at) == (LAST == 1));
    if (second_wins) return b;
    return a;
}

int finish(Extreme total) {
    return total.at;
}
#else
#include <finish>
#if WIDE
#define VALUE NUMBERS
#else
#define VALUE NUMBER
#endif
#define START VALUE(IDENTITY)
#endif
#if COLUMNS && WIDE || ARG
#define STATE VALUE
#else
#define STATE NUMBER
#endif

VALUE value(int i) {
    locate_element(i);
#include <fetches>
}

// Reduces every `stride`-th number from `i` on, below `end`.
VALUE reduce_range(int i, int end, int stride) {
    VALUE total = START;
    while (i < end) {
        int stop = min(end, i + RUN * stride);
        VALUE run = START;
#if ARG
        for (; i < stop; i += FETCHES * stride) {
            VALUE values[FETCHES];
            for (int j = 0; j < FETCHES; ++j) values[j] = value(min(i + j * stride, stop - 1));
            for (int j = 0; j < FETCHES; ++j)
                if (i + j * stride < stop) run = join(run, values[j]);
        }
#else
        for (; i + (AT_ONCE - 1) * stride < stop; i += AT_ONCE * stride) {
            VALUE a = value(i), b = value(i + stride);
#if AT_ONCE == 4
            VALUE c = value(i + 2 * stride), d = value(i + 3 * stride);
            run = join(run, join(join(a, b), join(c, d)));
#else
            run = join(run, join(a, b));
#endif
        }
        for (; i < stop; i += stride) run = join(run, value(i));
#endif
        total = join(total, run);
    }
    return total;
}

// Reduces the numbers that one of `lanes` lanes takes of result `o`. Where the numbers are in parts, `o` counts
// the first parts of all results, then the second parts, and so on.
VALUE reduce_lane(int o, int lane, int lanes) {
    int part = o / results;
    locate_result(o - part * results);
#if COLUMNS
    return reduce_range(part * chunk + lane, min((part + 1) * chunk, extent), lanes);
#else
    return reduce_range(part * chunk + lane * STEP, min((part + 1) * chunk, extent), lanes * STEP);
#endif
}

uniform int outputs;
