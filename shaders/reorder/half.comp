#version 310 es
// A row-major matrix to half precision, the numbers two by two; whatever pads its rows goes along.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "common/nan.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec2 x[]; };
layout(std430, binding = 1) buffer Out { uint result[]; };
uniform int out_size;  // pairs

// packHalf2x16 with NaN, infinities and what is beyond 65504 by bits: drivers differ in them.
uint halves_of(vec2 v) {
    uint halves = packHalf2x16(v);
    for (int j = 0; j < 2; ++j) {
        uint bits = floatBitsToUint(v[j]);
        if ((bits & 0x7fffffffu) < 0x477ff000u) continue;  // 65520: less is rounded to 65504
        uint special = (bits >> 16 & 0x8000u) | (is_nan(v[j]) ? 0x7e00u : 0x7c00u);
        halves = (halves & ~(0xffffu << 16 * j)) | special << 16 * j;
    }
    return halves;
}

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < out_size; i += stride)
        result[i] = halves_of(x[i]);
}
