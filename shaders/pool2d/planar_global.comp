#version 310 es
// Maximum or average over whole planar images: a workgroup a channel, its lanes share the pixels.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c, h, w;
uniform int x_row, out_row;
shared float lanes[WG_X];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    for (int plane = int(WORKGROUP_ID.y); plane < n * c; plane += int(WORKGROUP_COUNT.y)) {
        int image = plane / c;
        int channel = plane - image * c;
        int first = image * x_row + channel * h * w;
        float value = IDENTITY;
        for (int i = lane; i < h * w; i += WG_X) value = joined(value, x[first + i]);
        lanes[lane] = value;
        workgroup_barrier();
        if (lane == 0) {
            for (int i = 1; i < WG_X; ++i) value = joined(value, lanes[i]);
            result[image * out_row + channel] = value / places(0, 0, h, w, h, w);
        }
        workgroup_barrier();
    }
}
