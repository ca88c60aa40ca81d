#version 310 es
// Zeros, four an invocation.
#ifndef WG_X
#define WG_X 64
#endif
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Out { vec4 result[]; };
uniform int out_size;

void main() {
    int stride = int(gl_NumWorkGroups.x) * WG_X;
    for (int i = int(gl_GlobalInvocationID.x); 4 * i < out_size; i += stride) result[i] = vec4(0.0);
}
