#version 310 es
// A row of the result an invocation (Cheng's version 3): the second operand is transposed first
// (cheng_trans of reorder), the workgroup brings each of its rows to shared memory in turn, a vector
// of WIDTH numbers an invocation, and every invocation multiplies it by a row of its own, WIDTH
// numbers a step. Its arithmetic is FP32 or, MEDIUMP, FP16 as his section V.B.7 has it: operands and
// products are halves, their sums FP32. His text has no code; rows and columns that are no multiple
// of WIDTH are ours.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef MEDIUMP
#define MEDIUMP 0
#endif
// ROUND: 1, by integers; 0, left to the driver, whose mediump may be FP16 here and FP32 there.
#ifndef ROUND
#define ROUND 1
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "matmul/operands.glsl"
#include "matmul/scalar.glsl"
#define QUADS (WIDTH / 4)
#if MEDIUMP
#define NUMBERS mediump vec4
#else
#define NUMBERS vec4
#endif
layout(local_size_x = WG_X) in;
uniform int m, n, k;
uniform int x_row, weight_row, out_row;  // numbers, multiples of 4
shared NUMBERS tile[WG_X * QUADS];

#if MEDIUMP && ROUND
// Four numbers rounded to FP16: to 11 bits, below 2^-14 to multiples of 2^-24, and from 65520 on to infinity.
// NVIDIA's compiler takes unpackHalf2x16(packHalf2x16(v)) for v.
NUMBERS rounded(vec4 v) {
    uvec4 bits = floatBitsToUint(v), magnitude = bits & 0x7fffffffu;
    vec4 normal = uintBitsToFloat((bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u);
    vec4 small = roundEven(v * 16777216.0) * 5.9604645e-8;
    vec4 beyond = v * uintBitsToFloat(0x7f800000u);
    vec4 finite = mix(normal, small, lessThan(magnitude, uvec4(0x38800000u)));
    return mix(finite, beyond, greaterThanEqual(magnitude, uvec4(0x477ff000u)));
}
#else
// Four numbers as the driver has them.
NUMBERS rounded(NUMBERS v) {
    return v;
}
#endif

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int row = int(INVOCATION_ID.x);
    int first = min(row, m - 1) * (x_row / 4);  // rows past the matrix repeat its last one
    int steps = (k + 3) / 4;
    for (int column = 0; column < n; ++column) {
        int start = column * (weight_row / 4);
        vec4 sum = vec4(0.0);
        for (int step = 0; step < steps; step += WG_X * QUADS) {
            for (int i = lane * QUADS; i < (lane + 1) * QUADS; ++i)
                tile[i] = rounded(weight_at(start + min(step + i, steps - 1)));
            workgroup_barrier();
            for (int i = 0; i < WG_X * QUADS && step + i < steps; i += QUADS) {
                NUMBERS a[QUADS];
                for (int j = 0; j < QUADS; ++j)
                    a[j] = rounded(x_at(first + min(step + i + j, steps - 1)));
                for (int j = 0; j < QUADS; ++j) {
                    // The row's padding may hold anything.
                    NUMBERS b = tile[i + j];
                    NUMBERS product = first_of(a[j], k - 4 * (step + i + j)) * b;
                    if (4 * (step + i + j) < k) sum += rounded(product);
                }
            }
            workgroup_barrier();
        }
        if (row < m) finish(dot(sum, vec4(1.0)), column, row * out_row + column);
    }
}
