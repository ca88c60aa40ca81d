#version 300 es
// One function of every element by transform feedback, whatever the layout: four vec4 a vertex.
#include "activation/function.glsl"

vec4 vector(int i, vec4 value) {
    return activate(value);
}
#include "common/capture_each.glsl"
