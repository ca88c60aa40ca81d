// Copies words, a vec4 of them an invocation and turn.
#include "common/launch.glsl"
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Source { uvec4 source[]; };
layout(std430, binding = 1) buffer Target { uvec4 target[]; };
uniform int count;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * 64;
    for (int i = int(INVOCATION_ID.x); i < count; i += stride) target[i] = source[i];
}
