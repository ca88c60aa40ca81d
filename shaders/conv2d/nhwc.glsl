// What convolutions of channels-last images share: the geometry, the last quad of channels, and what
// is done to four sums before they are stored.
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

// The top left corner of the window of a pixel, counted through all images, and its image.
ivec3 corner(int pixel) {
    int image = pixel / (oh * ow);
    int rest = pixel - image * oh * ow;
    int y = rest / ow;
    return ivec3((rest - y * ow) * STRIDE_W - PADDING_LEFT, y * STRIDE_H - PADDING_TOP, image);
}

// The corner of the pixel that follows the one whose corner is `at`; past the last image that of
// the last image's first pixel.
ivec3 next_corner(ivec3 at) {
    at.x += STRIDE_W;
    if (at.x < ow * STRIDE_W - PADDING_LEFT) return at;
    at = ivec3(-PADDING_LEFT, at.y + STRIDE_H, at.z);
    if (at.y < oh * STRIDE_H - PADDING_TOP) return at;
    return ivec3(-PADDING_LEFT, -PADDING_TOP, min(at.z + 1, n - 1));
}

// The first vec4 of the pixel at a tap of the window whose corner is `at`; -1 outside of the image.
int pixel_at_tap(ivec3 at, int ky, int kx) {
    int iy = at.y + ky * DILATION_H, ix = at.x + kx * DILATION_W;
    bool inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
    return inside ? ((at.z * h + iy) * w + ix) * (x_pixel >> 2) + (x_first >> 2) : -1;
}

// Stores the sums of the `quad`th output channels of a pixel.
void finish(vec4 sum, int pixel, int quad) {
    int place = pixel * (out_pixel >> 2) + (out_first >> 2) + quad;
    result[place] = STORED(epilogue(sum, place, quad));
}
