#version 310 es
// The words of the result, each from where the map says.
#ifndef WG_X
#define WG_X 64
#endif
#include "move/copy.glsl"
