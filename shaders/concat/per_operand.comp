#version 310 es
// An operand into its place of the result, by a launch for each.
#include "move/copy.glsl"
