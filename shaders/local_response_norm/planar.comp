#version 310 es
// Local response normalisation, row major: one result an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "local_response_norm/power.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c, inner;
uniform int x_row, out_row;

void main() {
    int row = c * inner;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * row; i += stride) {
        int image = i / row;
        int element = i - image * row;
        int channel = element / inner;
        int place = image * x_row + element;
        float squares = 0.0;
        for (int offset = -BEFORE; offset <= BEHIND; ++offset) {
            if (channel + offset < 0 || channel + offset >= c) continue;
            float neighbour = x[place + offset * inner];
            squares += neighbour * neighbour;
        }
        result[image * out_row + element] = normed(x[place], squares);
    }
}
