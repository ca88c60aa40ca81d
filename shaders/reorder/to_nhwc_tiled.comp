#version 310 es
// Planar images to channels last: tiles of 32 pixels and 4 QUADS channels through shared memory, so
// that pixels are read side by side and channels written so.
#ifndef QUADS
#define QUADS 8
#endif
#define TILE 32
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = TILE, local_size_y = QUADS) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int n, c, h, w;
uniform int x_row;
shared float tile[4 * QUADS * (TILE + 1)];  // one more: channels of a pixel lie in other banks

void main() {
    int plane = h * w, quads = (c + 3) / 4;
    int column = int(gl_LocalInvocationID.x), row = int(gl_LocalInvocationID.y);
    int lane = row * TILE + column;
    int pixel = int(INVOCATION_ID.x), channel = int(WORKGROUP_ID.y) * 4 * QUADS + row;
    int written = int(WORKGROUP_ID.x) * TILE + lane / QUADS;
    int quad = int(WORKGROUP_ID.y) * QUADS + lane % QUADS;
    int place = lane % QUADS * 4 * (TILE + 1) + lane / QUADS;
    for (int image = int(WORKGROUP_ID.z); image < n; image += int(WORKGROUP_COUNT.z)) {
        int start = image * x_row + channel * plane + pixel;
        for (int i = 0; i < 4; ++i) {
            bool inside = pixel < plane && channel + i * QUADS < c;
            float value = x[inside ? start + i * QUADS * plane : 0];
            tile[(row + i * QUADS) * (TILE + 1) + column] = inside ? value : 0.0;
        }
        workgroup_barrier();
        if (written < plane && quad < quads)
            result[(image * plane + written) * quads + quad] =
                vec4(tile[place], tile[place + TILE + 1], tile[place + 2 * (TILE + 1)],
                     tile[place + 3 * (TILE + 1)]);
        workgroup_barrier();
    }
}
