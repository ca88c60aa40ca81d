#version 310 es
// Direct convolution of planar images: PX pixels of a row by four output channels an invocation.
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef WG_Z
#define WG_Z 2
#endif
#ifndef PX
#define PX 2
#endif
#include "conv2d/direct.glsl"
