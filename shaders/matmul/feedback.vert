#version 300 es
// C = act(alpha A B^T + beta C + bias) by transform feedback: a vertex computes four columns of a
// row, the whole sum at once (Cronin 2018 captures partial products and adds them afterwards).
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef BATCHED
#define BATCHED 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#ifndef C_SAMPLER
#define C_SAMPLER sampler2D
#endif
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
#if HAS_BIAS
uniform highp BIAS_SAMPLER bias;
#endif
#if HAS_C
uniform highp C_SAMPLER c;
#endif
uniform int m, k;
uniform int x_row, weight_matrix, out_row;  // floats, multiples of 4
uniform float alpha, beta;
out highp vec4 result;

void main() {
    int columns = out_row / 4;
    int row = gl_VertexID / columns;
    int column = gl_VertexID - row * columns;
    int start = row * (x_row / 4);
#if BATCHED
    int tiles = row / m * (weight_matrix / 4);
#else
    const int tiles = 0;
#endif
    vec4 sum = vec4(0.0);
    int steps = (k + 3) / 4;
    for (int step = 0; step < steps; ++step) {
        vec4 a = texel(x, start + step);
        int rest = k - 4 * step;  // the row's padding may hold anything
        a = vec4(a.x, rest > 1 ? a.y : 0.0, rest > 2 ? a.z : 0.0, rest > 3 ? a.w : 0.0);
        int tile = tiles + (step * columns + column) * 4;
        sum += a.x * texel(weight, tile) + a.y * texel(weight, tile + 1)
             + a.z * texel(weight, tile + 2) + a.w * texel(weight, tile + 3);
    }
    sum *= alpha;
#if HAS_BIAS
    sum += texel(bias, column);
#endif
#if HAS_C
    sum += beta * texel(c, gl_VertexID);
#endif
    result = activate(sum);
}
