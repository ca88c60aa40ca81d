// Shared by convolutions of channels-last images: operands, the geometry of windows, and the epilogue and the
// store of four sums.
#include "common/window.glsl"
#include "common/first_of.glsl"
#include "common/x.glsl"
#include "conv2d/weight.glsl"
layout(std430, binding = 2) buffer Out { OUT_FOUR result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_first, x_pixel, out_first, out_pixel;  // floats, multiples of 4
#define PROLOGUE_CHANNELS c
#include <prologue>

// The top left corner (x, y) of the window of a pixel, which is counted through all images, and its image.
ivec3 corner(int pixel) {
    int image = pixel / (oh * ow);
    int in_image = pixel - image * oh * ow;
    int y = in_image / ow;
    return ivec3((in_image - y * ow) * STRIDE_W - PADDING_LEFT, y * STRIDE_H - PADDING_TOP, image);
}

// The corner of the next pixel; past the last image, that of the last image's first pixel.
ivec3 next_corner(ivec3 origin) {
    origin.x += STRIDE_W;
    if (origin.x < ow * STRIDE_W - PADDING_LEFT) return origin;
    origin = ivec3(-PADDING_LEFT, origin.y + STRIDE_H, origin.z);
    if (origin.y < oh * STRIDE_H - PADDING_TOP) return origin;
    return ivec3(-PADDING_LEFT, -PADDING_TOP, min(origin.z + 1, n - 1));
}

// The offset, in vec4, of the pixel at a tap of the window with this corner; -1 outside of the image.
int pixel_at_tap(ivec3 origin, int ky, int kx) {
    int row = origin.y + ky * DILATION_H, column = origin.x + kx * DILATION_W;
    bool inside = row >= 0 && row < h && column >= 0 && column < w;
    return inside ? ((origin.z * h + row) * w + column) * (x_pixel >> 2) + (x_first >> 2) : -1;
}

// Stores the sums of the `quad`th output channels of a pixel.
void finish(vec4 sum, int pixel, int quad) {
    int index = pixel * (out_pixel >> 2) + (out_first >> 2) + quad;
    result[index] = STORED(epilogue(sum, index, quad));
}
