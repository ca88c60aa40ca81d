#version 310 es
// Gradients of softmaxes of rows of whole vec4s: the sum of dy x in one pass, the results in another.
#undef WIDE
#define WIDE 1
#include "reduce/rows.glsl"
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
layout(std430, binding = 1) buffer X { vec4 x[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>
#define STATE float

float join(float a, float b) {
    return a + b;
}
#include "reduce/lanes.glsl"

// What is 0 adds nothing, also where x is NaN, as rows are that are masked altogether.
float product(vec4 g, vec4 x) {
    vec4 each = mix(g * x, vec4(0.0), equal(g, vec4(0.0)));
    return (each.x + each.y) + (each.z + each.w);
}

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_LocalInvocationID.y);
    for (int group = int(WORKGROUP_ID.y); group * RESULTS < rows; group += int(WORKGROUP_COUNT.y)) {
        locate_row(group * RESULTS + line);
        float sum = 0.0;
        for (int i = begin + lane; i < last; i += LANES) sum += product(dy[i], x[i]);
        sum = reduce_lanes(sum, lane, line);
        for (int i = begin + lane; i < last; i += LANES) {
            vec4 g = dy[i];
            vec4 value = mix(x[i] * (g - sum), vec4(0.0), equal(g, vec4(sum)));
            result[i + out_shift] = epilogue(value, i + out_shift, i - begin);
        }
    }
}
