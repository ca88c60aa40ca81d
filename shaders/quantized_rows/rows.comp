#version 310 es
// Gathers rows of packed weights, unpacked: four weights an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "common/fours.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Index { int index[]; };
layout(std430, binding = 2) buffer Out { OUT_FOUR result[]; };
#include <epilogue>
#include "common/quantized.glsl"
uniform int rows, n, k, units, out_row;

void main() {
    int quad = int(INVOCATION_ID.x), row = int(INVOCATION_ID.y);
    if (4 * quad >= k || row >= rows) return;
    int offset = row * (out_row / 4) + quad;
    int source = index[row];
    vec4 weights = unpacked(clamp(source < 0 ? source + n : source, 0, n - 1) * units * 8 + quad);
    result[offset] = STORED(epilogue(weights, offset, quad));
}
