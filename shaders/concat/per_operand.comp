#version 310 es
// An operand into its place of the result, by a launch for each.
#ifndef WG_X
#define WG_X 64
#endif
#include "move/copy.glsl"
