#version 300 es
// Partial dot products as Cronin 2018, section 3.4, captures them: an instance is a column, a vertex
// takes the next WIDTH numbers of x, an attribute, and multiplies them by those of the column.
// B_TRANSPOSED: the weights' rows follow one another, WEIGHT_TEXEL numbers a texel; else each
// number's columns do. ORDER 2: x lies transposed, and a vertex takes one number.
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef B_TRANSPOSED
#define B_TRANSPOSED 1
#endif
#ifndef WEIGHT_TEXEL
#define WEIGHT_TEXEL 4
#endif
#ifndef ORDER
#define ORDER 1
#endif
#if WIDTH == 1
#define VECTOR float
#elif WIDTH == 2
#define VECTOR vec2
#elif WIDTH == 3
#define VECTOR vec3
#else
#define VECTOR vec4
#endif
#include "common/texel.glsl"
in highp VECTOR x;
uniform highp WEIGHT_SAMPLER weight;
uniform int m, k, parts, weight_rows;
uniform int first_instance;
#define INSTANCE (gl_InstanceID + first_instance)
out highp float result;

float number(int i) {
#if B_TRANSPOSED
    return texel(weight, INSTANCE * k + i).x;
#else
    return texel(weight, i * weight_rows + INSTANCE).x;
#endif
}

void main() {
#if ORDER == 2
    int part = gl_VertexID / m;
#else
    int part = gl_VertexID % parts;
#endif
#if WIDTH == 1
    result = x * number(part);
#elif WEIGHT_TEXEL == WIDTH
    result = dot(x, texel(weight, INSTANCE * parts + part));
#else
    VECTOR met = VECTOR(0.0);
    for (int i = 0; i < WIDTH; ++i) met[i] = number(part * WIDTH + i);
    result = dot(x, met);
#endif
}
