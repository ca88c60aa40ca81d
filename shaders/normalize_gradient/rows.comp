#version 310 es
// Gradients of normalised rows of whole vec4s. The first pass computes the means of x and of g, which
// is dy times the weight, and the sums of products of the deviations from these: those of blocks, which
// are merged (Chan, Golub and LeVeque 1979). The second computes the results.
#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef HAS_WEIGHT
#define HAS_WEIGHT 0
#endif
#undef WIDE
#define WIDE 1
#include "common/nan.glsl"
#include "reduce/rows.glsl"
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
layout(std430, binding = 1) buffer X { vec4 x[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#if HAS_WEIGHT
layout(std430, binding = 3) buffer Weight { vec4 weight[]; };
#endif
#include <epilogue>
uniform float eps;

struct State {
    float count;
    float mean, mean_g;
    float squares, products;  // sums: of x's squared deviations; of x's deviations times g's
};
#define STATE State

State join(State a, State b) {
    float count = a.count + b.count;
#if CENTRED
    if (count == 0.0) return a;
    float share = b.count / count, weight_product = a.count * share;
    float delta = b.mean - a.mean, delta_g = b.mean_g - a.mean_g;
    return State(count, a.mean + delta * share, a.mean_g + delta_g * share,
                 a.squares + b.squares + delta * weight_product * delta,
                 a.products + b.products + delta * weight_product * delta_g);
#else
    return State(count, 0.0, 0.0, a.squares + b.squares, a.products + b.products);
#endif
}
#include "reduce/lanes.glsl"

float total(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// The state after four more values.
State accumulate(State state, vec4 x, vec4 g) {
    float mean = 0.0, mean_g = 0.0;
#if CENTRED
    mean = total(x) * 0.25;
    mean_g = total(g) * 0.25;
    x -= mean;
    g -= mean_g;
#endif
    return join(state, State(4.0, mean, mean_g, total(x * x), total(x * g)));
}

// The i-th vec4 of g; the row begins at `begin`.
vec4 g_at(int i) {
#if HAS_WEIGHT
    return dy[i] * weight[i - begin];
#else
    return dy[i];
#endif
}

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_LocalInvocationID.y);
    for (int group = int(WORKGROUP_ID.y); group * RESULTS < rows; group += int(WORKGROUP_COUNT.y)) {
        locate_row(group * RESULTS + line);
        State row_state = State(0.0, 0.0, 0.0, 0.0, 0.0);
        for (int i = begin + lane; i < last; i += LANES) row_state = accumulate(row_state, x[i], g_at(i));
        row_state = reduce_lanes(row_state, lane, line);
        float variance = row_state.squares / float(extent) + eps;
        // GLSL leaves the square root of numbers that are not finite open.
        float scale = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
        float projection = row_state.products / float(extent) * scale * scale;
        for (int i = begin + lane; i < last; i += LANES) {
            vec4 value = (g_at(i) - row_state.mean_g - (x[i] - row_state.mean) * projection) * scale;
            result[i + out_shift] = epilogue(value, i + out_shift, i - begin);
        }
    }
}
