// The reduction of the numbers of a result, in a fixed order: runs of numbers, then the runs.
// With WIDE four numbers are fetched at once: neighbours along what is reduced or, with COLUMNS,
// neighbouring results. The host writes the operands, how each is fetched, and the expressions.
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
#define RUN 256  // numbers of a run: what is added up one by one in a run, and of runs, stays short
#include "common/nan.glsl"
#include "reduce/walk.glsl"
uniform int results, extent, chunk;

#if WIDE
#define STEP 4
#define VALUE vec4
uniform int spread[OPERANDS];  // 1: its four numbers are neighbours, 0: they are the same one
#define FETCH(operand, k) \
    (spread[k] == 1 ? AT(operand, at[k] >> 2) : vec4(AT(operand, at[k] >> 2)[at[k] & 3]))
#else
#define STEP 1
#define VALUE float
#define FETCH(operand, k) AT(operand, at[k])
#endif

#if KIND == 0
#define NOTHING 0.0
#elif KIND == 1
#define NOTHING 1.0
#elif KIND == 2
#define NOTHING uintBitsToFloat(0xff800000u)
#else
#define NOTHING uintBitsToFloat(0x7f800000u)
#endif

float join(float a, float b) {
#if KIND == 0
    return a + b;
#elif KIND == 1
    return a * b;
#elif KIND == 2
    return greater(a, b);
#else
    return is_nan(a) ? a : is_nan(b) ? b : min(a, b);
#endif
}

vec4 join(vec4 a, vec4 b) {
#if KIND == 0
    return a + b;
#elif KIND == 1
    return a * b;
#else
    return vec4(join(a.x, b.x), join(a.y, b.y), join(a.z, b.z), join(a.w, b.w));
#endif
}

#include <operands>

#include <prologue>
#include <finish>

VALUE value(int i) {
    take_number(i);
#include <fetches>
}

// Every `apart`-th number from `i` on before `last`.
VALUE walked(int i, int last, int apart) {
    VALUE whole = VALUE(NOTHING);
    while (i < last) {
        int stop = min(last, i + RUN * apart);
        VALUE run = VALUE(NOTHING);
        for (; i + 3 * apart < stop; i += 4 * apart) {
            VALUE a = value(i), b = value(i + apart);
            VALUE c = value(i + 2 * apart), d = value(i + 3 * apart);
            run = join(run, join(join(a, b), join(c, d)));
        }
        for (; i < stop; i += apart) run = join(run, value(i));
        whole = join(whole, run);
    }
    return whole;
}

// What lane `lane` of `lanes` has of result `o`, or, where the numbers are in parts, of a part of
// it: those of the first part of all results come first.
VALUE of_lane(int o, int lane, int lanes) {
    int part = o / results;
    take_result(o - part * results);
#if COLUMNS
    return walked(part * chunk + lane, min((part + 1) * chunk, extent), lanes);
#else
    return walked(part * chunk + lane * STEP, min((part + 1) * chunk, extent), lanes * STEP);
#endif
}

uniform int outputs;
