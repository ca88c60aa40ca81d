#version 310 es
// Direct convolution of planar images through shared memory, pooled by 2 x 2, to planar images.
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 2
#endif
#ifndef WG_Z
#define WG_Z 4
#endif
#ifndef PX
#define PX 1
#endif
#ifndef TN
#define TN 1
#endif
#ifndef ROOM
#define ROOM 1024
#endif
#ifndef LOADS
#define LOADS 2
#endif
#ifndef PLANAR
#define PLANAR 1
#endif
#include "conv2d/direct_tiled.glsl"
