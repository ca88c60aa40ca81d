// EACH words an invocation, one by one or by four, with a stride of all invocations: starting a workgroup takes
// longer than moving a few words. AT_ONCE are loaded before any is stored.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef EACH
#define EACH 4
#endif
#ifndef AT_ONCE
#define AT_ONCE 4
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
#include "move/indices.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { WORDS x[]; };
layout(std430, binding = 1) buffer Out { WORDS result[]; };
uniform int places, fill;

#define STEPS (EACH / WIDTH)
#define LOADS (STEPS < AT_ONCE ? STEPS : AT_ONCE)

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
#if STEPS > 1
    int index[RANK], stride_index[RANK];
    find_indices(int(INVOCATION_ID.x), index);
    find_indices(stride, stride_index);
    for (int i = int(INVOCATION_ID.x); i < places; i += LOADS * stride) {
        int at[LOADS], target[LOADS];
        WORDS words[LOADS];
        for (int k = 0; k < LOADS; ++k) {
            at[k] = source(index, target[k]);
            advance(index, stride_index);
        }
        for (int k = 0; k < LOADS; ++k)
            words[k] = x[i + k * stride < places ? max(at[k], 0) : 0];
        for (int k = 0; k < LOADS; ++k)
            if (i + k * stride < places) result[target[k]] = at[k] < 0 ? WORDS(fill) : words[k];
    }
#else
    for (int i = int(INVOCATION_ID.x); i < places; i += stride) {
        int target;
        int at = source(i, target);
        WORDS word = x[max(at, 0)];
        result[target] = at < 0 ? WORDS(fill) : word;
    }
#endif
}
