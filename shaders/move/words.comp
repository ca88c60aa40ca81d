#version 310 es
// The words of the result, each from where the map says.
#include "move/copy.glsl"
