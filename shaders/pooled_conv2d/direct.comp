#version 310 es
// Direct convolution of planar images, pooled by 2 x 2: PX windows of a row by four output channels an
// invocation.
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
#define PX 1
#endif
#ifndef POOL
#define POOL 1
#endif
#include "conv2d/direct.glsl"
