#version 310 es
// Products of rows of x that are normalised, as matmul/gemv.comp has those of x: lanes that walk along
// k multiply by the norm's numbers, and add up the squares of a row, whose root divides the sums at the
// end. With a GATE each result is of a row of `weight` and of one of `up`. Where rows are CENTRED their
// mean is found in a walk before, and taken away; the weights have the norm's numbers then.
#ifndef WG_X
#define WG_X 128
#endif
#ifndef ROWS
#define ROWS 2
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#define BATCHED 0
#include "matmul/operands.glsl"
#include "matmul/scalar.glsl"
#include "quantized_matmul/gate.glsl"
layout(local_size_x = WG_X) in;
#ifndef CENTRED
#define CENTRED 0
#endif
#if !CENTRED
layout(std430, binding = 3) buffer Norm { vec4 norm[]; };
#endif
#ifndef UP_HALF
#define UP_HALF 0
#endif
#if GATE && UP_HALF
layout(std430, binding = 4) buffer Up { uvec2 up[]; };
#define UP_AT(i) four_halves(up[i])
#elif GATE
layout(std430, binding = 4) buffer Up { vec4 up[]; };
#define UP_AT(i) up[i]
#endif
uniform int n, k;
uniform int x_row, weight_row, up_row, out_row;  // floats, multiples of 4
uniform float eps;
#define SUMS (HALVES * ROWS)
shared float part[(SUMS + 1) * WG_X];  // the squares last
vec4 sum[SUMS], squares;
#if CENTRED
float mean;
#endif

// Adds what four numbers of x, `rest` of which are of the row, give, at vec4 `step` of the rows.
void add(vec4 a, int first, int last, int step, int rest) {
#if CENTRED
    a -= mean;
#endif
    if (rest < 4) a = first_of(a, rest);  // what pads the rows may be anything
    squares += a * a;
#if !CENTRED
    a *= rest < 4 ? first_of(norm[step], rest) : norm[step];
#endif
    for (int i = 0; i < ROWS; ++i) {
        int row = first + min(i, last);
        vec4 w = weight_at(row * (weight_row / 4) + step);
        sum[i] += a * (rest < 4 ? first_of(w, rest) : w);
#if GATE
        w = UP_AT(row * (up_row / 4) + step);
        sum[ROWS + i] += a * (rest < 4 ? first_of(w, rest) : w);
#endif
    }
}

#if CENTRED
// Finds the mean of the row from vec4 `start` on, of the numbers less its first one: where all are
// equal, they are their mean, however large.
void find_mean(int lane, int start) {
    float pivot = x_at(start).x, total = 0.0;
    for (int step = lane; 4 * step < k; step += WG_X)
        total += dot(first_of(x_at(start + step) - pivot, k - 4 * step), vec4(1.0));
    part[lane] = total;
    for (int width = WG_X / 2; width > 0; width /= 2) {
        workgroup_barrier();
        if (lane < width) part[lane] += part[lane + width];
    }
    workgroup_barrier();
    mean = pivot + part[0] / float(k);
    workgroup_barrier();
}
#endif

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int first = int(WORKGROUP_ID.y) * ROWS, row = int(WORKGROUP_ID.z);
    int last = n - 1 - first;  // rows past the weights repeat the last one
    int start = row * (x_row / 4), steps = k / 4, left = k - 4 * steps;
    for (int i = 0; i < SUMS; ++i) sum[i] = vec4(0.0);
    squares = vec4(0.0);
#if CENTRED
    find_mean(lane, start);
#endif
    for (int step = lane; step < steps; step += WG_X) add(x_at(start + step), first, last, step, 4);
    if (left > 0 && lane == steps % WG_X) add(x_at(start + steps), first, last, steps, left);
    for (int i = 0; i < SUMS; ++i) part[i * WG_X + lane] = dot(sum[i], vec4(1.0));
    part[SUMS * WG_X + lane] = dot(squares, vec4(1.0));
    for (int width = WG_X / 2; width > 0; width /= 2) {
        workgroup_barrier();
        if (lane < width)
            for (int i = 0; i <= SUMS; ++i) part[i * WG_X + lane] += part[i * WG_X + lane + width];
    }
    workgroup_barrier();
    if (lane < ROWS && lane <= last) {
        float divisor = inversesqrt(part[SUMS * WG_X] / float(k) + eps);
        float found = part[lane * WG_X] * divisor;
#if GATE
        found = gated(found) * (part[(ROWS + lane) * WG_X] * divisor);
#endif
        finish(found, first + lane, row * out_row + first + lane);
    }
}
