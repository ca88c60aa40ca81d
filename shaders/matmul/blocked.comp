#version 310 es
// C = act(alpha A B^T + beta C + bias): TM rows by 4 TN columns an invocation, no shared memory.
// A row of x is read as vec4 along k; the weights lie as 4 x 4 tiles, so four vec4 of a tile
// multiply one vec4 of x. After blockedNT of Gronqvist, section 1.4.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 1
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#include "common/activation.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { vec4 bias[]; };
#elif HAS_C
layout(std430, binding = 3) buffer C { vec4 c[]; };
#endif
uniform int m, n, k;
uniform int x_row, out_row;  // floats, multiples of 4
uniform float alpha, beta;

void main() {
    int columns = out_row / 4;
    int column = int(gl_GlobalInvocationID.x) * TN;
    int row = int(gl_GlobalInvocationID.y) * TM;
    if (row >= m || column >= columns) return;

    vec4 sum[TM * TN];
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
    int stride = x_row / 4;
    int first = row * stride;
    int last = m - 1 - row;  // rows past the matrix repeat its last one

    int steps = (k + 3) / 4;
    for (int step = 0; step < steps; ++step) {
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = x[first + min(i, last) * stride + step];
        if (4 * step + 4 > k) {  // the row's padding may hold anything
            int rest = k - 4 * step;
            for (int i = 0; i < TM; ++i)
                a[i] = vec4(a[i].x, rest > 1 ? a[i].y : 0.0, rest > 2 ? a[i].z : 0.0, 0.0);
        }
        for (int j = 0; j < TN; ++j) {
            int tile = (step * columns + min(column + j, columns - 1)) * 4;
            for (int l = 0; l < 4; ++l) {
                vec4 b = weight[tile + l];
                for (int i = 0; i < TM; ++i) sum[i * TN + j] += a[i][l] * b;
            }
        }
    }
    for (int i = 0; i < TM; ++i) {
        for (int j = 0; j < TN; ++j) {
            if (row + i >= m || column + j >= columns) continue;
            int place = (row + i) * columns + column + j;
            vec4 value = alpha * sum[i * TN + j];
#if HAS_BIAS
            value += bias[column + j];
#elif HAS_C
            value += beta * c[place];
#endif
            result[place] = activate(value);
        }
    }
}
