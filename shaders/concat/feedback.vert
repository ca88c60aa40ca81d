#version 300 es
// Rows of two or three inputs behind one another by transform feedback: four elements a vertex. A
// row is an image, planar or with its channels in groups of four, which are as many floats where
// every group is whole. WIDTH is the floats of a texel: 4 takes rows of whole texels only.
#ifndef COUNT
#define COUNT 2
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef X0_SAMPLER
#define X0_SAMPLER sampler2D
#endif
#ifndef X1_SAMPLER
#define X1_SAMPLER sampler2D
#endif
#ifndef X2_SAMPLER
#define X2_SAMPLER sampler2D
#endif
#include "common/texel.glsl"
uniform highp X0_SAMPLER x0;
uniform highp X1_SAMPLER x1;
uniform int c0, c1;
#if COUNT > 2
uniform highp X2_SAMPLER x2;
uniform int c2;
#endif
uniform int c, inner;

// Where the image of so many channels begins.
int start(int image, int channels) {
    return image * ((channels * inner + 3) / 4) * (4 / WIDTH);
}

vec4 fetch(int image, int place) {
    int first = c0 * inner / WIDTH, second = c1 * inner / WIDTH;
    place = min(place, c * inner / WIDTH - 1);
    if (place < first) return texel(x0, start(image, c0) + place);
    place -= first;
#if COUNT > 2
    if (place >= second) return texel(x2, start(image, c2) + place - second);
#endif
    return texel(x1, start(image, c1) + place);
}

vec4 vector(int i) {
    int quads = (c * inner + 3) / 4;
    int image = i / quads;
    int quad = i - image * quads;
#if WIDTH == 4
    return fetch(image, quad);
#else
    // Places past the row's end are padding: they repeat its last element.
    return vec4(fetch(image, quad * 4).x, fetch(image, quad * 4 + 1).x,
                  fetch(image, quad * 4 + 2).x, fetch(image, quad * 4 + 3).x);
#endif
}
#include "common/capture.glsl"
