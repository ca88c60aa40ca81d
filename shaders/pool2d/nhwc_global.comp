#version 310 es
// Maximum or average over whole images, channels last: WG_Y invocations share the pixels of four
// channels, and a workgroup has WG_X such neighbours.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
#include "common/fours.glsl"
layout(std430, binding = 0) buffer X { X_FOUR x[]; };
layout(std430, binding = 1) buffer Out { OUT_FOUR result[]; };
uniform int n, c, h, w;
uniform int x_first, x_pixel, out_first, out_pixel;  // floats, multiples of 4
shared vec4 lanes[WG_X * WG_Y];

void main() {
    int quads = (c + 3) / 4;
    int quad = int(INVOCATION_ID.x);
    int lane = int(gl_LocalInvocationID.y);
    int place = lane * WG_X + int(gl_LocalInvocationID.x);
    for (int image = int(WORKGROUP_ID.z); image < n; image += int(WORKGROUP_COUNT.z)) {
        vec4 value = vec4(IDENTITY);
        if (quad < quads)
            for (int i = lane; i < h * w; i += WG_Y)
                value = joined(value, X_AT((image * h * w + i) * (x_pixel / 4) + x_first / 4 + quad));
        lanes[place] = value;
        wait();
        if (lane == 0 && quad < quads) {
            for (int i = 1; i < WG_Y; ++i) value = joined(value, lanes[i * WG_X + place]);
            result[image * (out_pixel / 4) + out_first / 4 + quad] =
                STORED(value / places(0, 0, h, w, h, w));
        }
        wait();
    }
}
