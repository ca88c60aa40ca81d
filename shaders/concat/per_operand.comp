#version 310 es
// An operand into its place of the result, by a launch for each.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef EACH
#define EACH 4
#endif
#ifndef AT_ONCE
#define AT_ONCE 4
#endif
#include "move/copy.glsl"
