// One word, or four together, an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef OUT_HALF
#define OUT_HALF 0  // numbers are halves, of which four together are two words
#endif
#if WIDTH == 4 && OUT_HALF
#define WORDS ivec2
#elif WIDTH == 4
#define WORDS ivec4
#else
#define WORDS int
#endif
#include "common/launch.glsl"
#include "move/map.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { WORDS x[]; };
layout(std430, binding = 1) buffer Out { WORDS result[]; };
uniform int places, fill;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < places; i += stride) {
        int target;
        int at = source(i, target);
        WORDS word = x[max(at, 0)];
        result[target] = at < 0 ? WORDS(fill) : word;
    }
}
