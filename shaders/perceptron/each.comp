#version 310 es
// Two products with a function behind each, of a sample a workgroup: what is between them stays in
// shared memory. Four results of a product are summed by as many lanes as there are for them, which
// walk along the terms side by side and read the weights in the order in which they lie.
#ifndef WG
#define WG 128
#endif
#ifndef MOST_HIDDEN
#define MOST_HIDDEN 2048
#endif
#include "common/launch.glsl"
#include "common/first_of.glsl"
layout(local_size_x = WG) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer First { vec4 first[]; };
layout(std430, binding = 2) buffer Second { vec4 second[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#include <functions>
uniform int n, c, hidden, o;
uniform int first_rows, second_rows;  // of the weights, padded to whole fours
shared vec4 part[WG];
shared vec4 between[MOST_HIDDEN / 4];

void wait() {
    memoryBarrierShared();
    barrier();
}

// The weights of four results by a term; those of the term behind the last are their biases.
vec4 weights(const bool last, int term, int quad) {
    return last ? second[term * (second_rows / 4) + quad] : first[term * (first_rows / 4) + quad];
}

// One product of a sample: of the hidden numbers if it is the last.
void multiply(const bool last, int image) {
    int terms = last ? hidden : c;
    int quads = ((last ? o : hidden) + 3) / 4;
    int lane = int(gl_LocalInvocationIndex);
    int across = min(quads, WG), slices = 1;
    while (2 * slices * across <= WG) slices *= 2;
    int slice = lane / across;
    for (int base = 0; base < quads; base += across) {
        int quad = min(base + lane % across, quads - 1);
        vec4 sum = vec4(0.0);
        for (int step = slice; slice < slices && 4 * step < terms; step += slices) {
            vec4 four = last ? between[step] : x[image * ((c + 3) / 4) + step];
            if (4 * step + 4 > terms) four = first_of(four, terms - 4 * step);
            for (int l = 0; l < 4; ++l)
                sum += four[l] * weights(last, min(4 * step + l, terms - 1), quad);
        }
        part[lane] = sum;
        for (int width = slices / 2; width > 0; width /= 2) {
            wait();
            if (slice < width) part[lane] += part[lane + width * across];
        }
        if (slice == 0 && base + lane < quads) {
            vec4 whole = part[lane] + weights(last, terms, quad);
            if (last)
                result[image * quads + quad] = outer(whole);
            else
                between[quad] = inner(whole);
        }
        wait();
    }
}

void main() {
    for (int image = int(WORKGROUP_ID.y); image < n; image += int(WORKGROUP_COUNT.y)) {
        multiply(false, image);
        multiply(true, image);
    }
}
