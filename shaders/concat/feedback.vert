#version 300 es
// COUNT operands behind one another by transform feedback. The host writes the samplers, and how
// each is fetched from. All counts are of words, or of four words where they lie together (WIDTH 4).
#ifndef COUNT
#define COUNT 2
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#define NUMBERS ivec4
#include "common/texel.glsl"
#include <operands>
uniform int outer_pitch, middle_pitch;                 // the loops around, in the result
uniform int outer_reads[COUNT], middle_reads[COUNT];   // and in each operand
uniform int starts[COUNT], ends[COUNT], lasts[COUNT];  // of a run of each; the operand's last place
#ifdef PADDED
uniform int columns, padding[COUNT];  // numbers of a row, and what is behind one in each operand
#define WITHIN(i) (place - starts[i] + (place - starts[i]) / columns * padding[i])
#else
#define WITHIN(i) (place - starts[i])
#endif
#define FETCH(x, i) \
    if (place < ends[i]) \
        return texel(x, min(outer * outer_reads[i] + middle * middle_reads[i] + WITHIN(i), \
                            lasts[i]));

ivec4 fetch(int place) {
    int outer = place / outer_pitch;
    place -= outer * outer_pitch;
    int middle = place / middle_pitch;
    place -= middle * middle_pitch;
#include <fetches>
    return ivec4(0);  // padding
}

ivec4 vector(int i) {
#if WIDTH == 4
    return fetch(i);
#else
    return ivec4(fetch(4 * i).x, fetch(4 * i + 1).x, fetch(4 * i + 2).x, fetch(4 * i + 3).x);
#endif
}
#include "common/capture.glsl"
