#version 310 es
// Maximum or average over whole images, channels last: WG_Y invocations share the pixels of four
// channels, each reading LOADS at a time, and a workgroup has WG_X such neighbours.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#ifndef LOADS
#define LOADS 1
#endif
#include "common/launch.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
#include "common/fours.glsl"
layout(std430, binding = 0) buffer X { X_FOUR x[]; };
layout(std430, binding = 1) buffer Out { OUT_FOUR result[]; };
uniform int n, c, h, w;
uniform int x_first, x_pixel, out_first, out_pixel;  // floats, multiples of 4
#define STATE vec4
#define LANES WG_Y
#define RESULTS WG_X
vec4 join(vec4 a, vec4 b) {
    return joined(a, b);
}
#undef joined
#include "reduce/lanes.glsl"

void main() {
    int quads = (c + 3) / 4, pixels = h * w, pixel = x_pixel / 4;
    int quad = int(INVOCATION_ID.x);
    int lane = int(gl_LocalInvocationID.y);
    for (int image = int(WORKGROUP_ID.z); image < n; image += int(WORKGROUP_COUNT.z)) {
        vec4 value = vec4(IDENTITY);
        int start = image * pixels * pixel + x_first / 4 + quad, i = quad < quads ? lane : pixels;
#if LOADS > 1
        for (; i + (LOADS - 1) * WG_Y < pixels; i += LOADS * WG_Y) {
            vec4 loaded[LOADS];
            for (int j = 0; j < LOADS; ++j) loaded[j] = X_AT(start + (i + j * WG_Y) * pixel);
            for (int j = 0; j < LOADS; ++j) value = join(value, loaded[j]);
        }
#endif
        for (; i < pixels; i += WG_Y) value = join(value, X_AT(start + i * pixel));
        value = reduce_lanes(value, lane, int(gl_LocalInvocationID.x));
        if (lane == 0 && quad < quads)
            result[image * (out_pixel / 4) + out_first / 4 + quad] =
                STORED(value / places(0, 0, h, w, h, w));
    }
}
