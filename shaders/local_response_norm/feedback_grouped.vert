#version 300 es
// Local response normalisation by transform feedback, channels in groups of four: one pixel of four
// channels a vertex.
#include "local_response_norm/power.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, inner;

// Whether a channel counts for one from which it is so far off.
bool counts(int offset) {
    return offset >= -BEFORE && offset <= BEHIND;
}

vec4 vector(int i) {
    int quads = (c + 3) / 4;
    int quad = i / inner % quads;
    vec4 squares = vec4(0.0);
    for (int there = max(quad - (BEFORE + 3) / 4, 0);
         there <= min(quad + (BEHIND + 3) / 4, quads - 1); ++there) {
        vec4 neighbours = texel(x, i + (there - quad) * inner);
        neighbours = first_of(neighbours * neighbours, c - there * 4);
        for (int lane = 0; lane < 4; ++lane) {
            int offset = (there - quad) * 4 + lane;
            float square = neighbours[lane];
            squares += vec4(counts(offset) ? square : 0.0, counts(offset - 1) ? square : 0.0,
                            counts(offset - 2) ? square : 0.0, counts(offset - 3) ? square : 0.0);
        }
    }
    vec4 own = texel(x, i);
    own = vec4(normed(own.x, squares.x), normed(own.y, squares.y), normed(own.z, squares.z),
               normed(own.w, squares.w));
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    return first_of(own, c - quad * 4);
}
#include "common/capture.glsl"
