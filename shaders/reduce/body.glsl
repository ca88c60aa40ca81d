// The reduction of the numbers of a result, in a fixed order: runs of numbers, then the runs.
// With WIDE four numbers are fetched at once: neighbours along what is reduced or, with COLUMNS,
// neighbouring results. The host writes the operands, how each is fetched, the expressions, and
// what is reduced: NUMBER, a float or an int, and four of them, NUMBERS; IDENTITY, which changes no
// other; SETTLED(x), what its type keeps of x. With ARG it is the place of the extreme, the first one
// or with LAST the last one of several, where NaN is the most extreme. AT_ONCE numbers, 4 or 2, are
// fetched before they are added up, FETCHES before the place of their extreme is looked for.
// Before this file: AT(x, i), the i-th number of x or, with WIDE, the i-th four.
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
#define RUN 256  // numbers of a run: what is added up one by one in a run, and of runs, stays short
#include "common/nan.glsl"
#include "common/float_key.glsl"
#include "reduce/walk.glsl"
#include <operands>
uniform int results, extent, chunk;

#if WIDE
#define STEP 4
uniform int spread[OPERANDS];  // 1: its four numbers are neighbours, 0: they are the same one
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
    int key;  // of its number: the more extreme, the greater
    int at;
};
#define VALUE Extreme
#define START Extreme(-0x7fffffff - 1, LAST == 1 ? -1 : 0x7fffffff)

// The order of numbers as that of integers, NaN the most extreme.
int key_of(float x) {
    int key = float_key(floatBitsToInt(x));
    return KIND == 2 || is_nan(x) ? key : ~key;
}

int key_of(int x) {
    return KIND == 2 ? x : ~x;
}

Extreme join(Extreme a, Extreme b) {
    bool other = b.key > a.key || (b.key == a.key && (a.at < b.at) == (LAST == 1));
    if (other) return b;
    return a;
}

int finish(Extreme whole) {
    return whole.at;
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

// Every `apart`-th number from `i` on before `last`.
VALUE walked(int i, int last, int apart) {
    VALUE whole = START;
    while (i < last) {
        int stop = min(last, i + RUN * apart);
        VALUE run = START;
#if ARG
        for (; i < stop; i += FETCHES * apart) {
            VALUE some[FETCHES];
            for (int j = 0; j < FETCHES; ++j) some[j] = value(min(i + j * apart, stop - 1));
            for (int j = 0; j < FETCHES; ++j)
                if (i + j * apart < stop) run = join(run, some[j]);
        }
#else
        for (; i + (AT_ONCE - 1) * apart < stop; i += AT_ONCE * apart) {
            VALUE a = value(i), b = value(i + apart);
#if AT_ONCE == 4
            VALUE c = value(i + 2 * apart), d = value(i + 3 * apart);
            run = join(run, join(join(a, b), join(c, d)));
#else
            run = join(run, join(a, b));
#endif
        }
        for (; i < stop; i += apart) run = join(run, value(i));
#endif
        whole = join(whole, run);
    }
    return whole;
}

// What lane `lane` of `lanes` has of result `o`, or, where the numbers are in parts, of a part of
// it: those of the first part of all results come first.
VALUE of_lane(int o, int lane, int lanes) {
    int part = o / results;
    locate_result(o - part * results);
#if COLUMNS
    return walked(part * chunk + lane, min((part + 1) * chunk, extent), lanes);
#else
    return walked(part * chunk + lane * STEP, min((part + 1) * chunk, extent), lanes * STEP);
#endif
}

uniform int outputs;
