// One word an invocation, four together, or four that are found one by one and written together (FOURS).
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef OUT_HALF
#define OUT_HALF 0  // numbers are halves, of which four together are two words
#endif
#ifndef FOURS
#define FOURS 0
#endif
#if FOURS
#define WRITTEN ivec4
#else
#define WRITTEN WORDS
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
layout(std430, binding = 1) buffer Out { WRITTEN result[]; };
uniform int places, fill;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < places; i += stride) {
#if FOURS
        Run run = run_of(4 * i);
        ivec4 words;
        for (int k = 0; k < 4; ++k) {
            if (run.last == run.end) run = run_of(4 * i + k);
            int at = source(run);
            int word = x[max(at, 0)];
            words[k] = at < 0 ? fill : word;
            ++run.last;
        }
        result[target_base / 4 + i] = words;
#else
        int target;
        int at = source(i, target);
        WORDS word = x[max(at, 0)];
        result[target] = at < 0 ? WORDS(fill) : word;
#endif
    }
}
