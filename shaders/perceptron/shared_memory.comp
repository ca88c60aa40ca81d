#version 310 es
// Consecutive fully-connected layers, a workgroup for a sample: the hidden results stay in shared
// memory. The lanes are divided evenly among the quads of results of a layer; those of a quad sum over
// neighbouring terms, so that loads of weights are coalesced.
#ifndef WG
#define WG 128
#endif
#ifndef LAYERS
#define LAYERS 2
#endif
#ifndef WEIGHTS_HALF
#define WEIGHTS_HALF 0
#endif
#ifndef MOST_HIDDEN
#define MOST_HIDDEN 2048
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/first_of.glsl"
#define HIDDEN_BUFFERS (LAYERS > 2 ? 2 : 1)  // a layer reads one while it writes the other
layout(local_size_x = WG) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 2) buffer Biases { vec4 biases[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#if WEIGHTS_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weights { uvec2 weights[]; };
vec4 weights_at(int i) { return four_halves(weights[i]); }
#else
layout(std430, binding = 1) buffer Weights { vec4 weights[]; };
vec4 weights_at(int i) { return weights[i]; }
#endif
#include <layers>
uniform int n;
uniform int widths[LAYERS + 1];
shared vec4 partial_sums[WG];
shared vec4 hidden[HIDDEN_BUFFERS * MOST_HIDDEN / 4];

// The offset in `hidden` of the results of the layer before `layer`.
int hidden_offset(int layer) {
    return (layer - 1) % HIDDEN_BUFFERS * (MOST_HIDDEN / 4);
}

// Compute one layer of a sample. first, bias: offsets of its weights and its biases.
void multiply(int layer, int image, int first, int bias) {
    int terms = widths[layer], quads = (widths[layer + 1] + 3) / 4;
    int lane = int(gl_LocalInvocationIndex);
    int across = min(quads, WG), slices = 1;
    while (2 * slices * across <= WG) slices *= 2;
    int slice = lane / across;
    for (int base = 0; base < quads; base += across) {
        int quad = min(base + lane % across, quads - 1);
        vec4 sum = vec4(0.0);
        for (int step = slice; slice < slices && 4 * step < terms; step += slices) {
            vec4 four = layer > 0 ? hidden[hidden_offset(layer) + step]
                                  : x[image * ((terms + 3) / 4) + step];
            if (4 * step + 4 > terms) four = first_of(four, terms - 4 * step);
            for (int l = 0; l < 4; ++l)
                sum += four[l] * weights_at(first + min(4 * step + l, terms - 1) * quads + quad);
        }
        partial_sums[lane] = sum;
        for (int width = slices / 2; width > 0; width /= 2) {
            workgroup_barrier();
            if (slice < width) partial_sums[lane] += partial_sums[lane + width * across];
        }
        if (slice == 0 && base + lane < quads) {
            vec4 activated = finished(layer, partial_sums[lane] + biases[bias + quad]);
            if (layer == LAYERS - 1)
                result[image * quads + quad] = activated;
            else
                hidden[hidden_offset(layer + 1) + quad] = activated;
        }
        workgroup_barrier();
    }
}

void main() {
    for (int image = int(WORKGROUP_ID.y); image < n; image += int(WORKGROUP_COUNT.y)) {
        int first = 0, bias = 0;
        for (int layer = 0; layer < LAYERS; ++layer) {
            multiply(layer, image, first, bias);
            int quads = (widths[layer + 1] + 3) / 4;
            first += widths[layer] * quads;
            bias += quads;
        }
    }
}
