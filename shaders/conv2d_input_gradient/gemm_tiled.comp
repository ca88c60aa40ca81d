#version 310 es
// A convolution's gradient by its input, channels last, as a product through shared memory: a workgroup
// computes a tile of WG_Y TM pixels of x by WG_X TN input channels, and steps along taps and output
// channels by BK. A tile has the same pixel of as many images as there are, so that all its rows read dy
// at the same taps; the other taps are skipped: those between two strides, and those outside of dy. See
// common/tile.glsl and conv2d/implicit_gemm_tiled.comp.
//
// The weight has the layout of the convolution itself, since a step of training needs both.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 4
#endif
#ifndef BK
#define BK 8
#endif
#ifndef SLICES
#define SLICES 1
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#define B_BY_DEPTHS 1
#include "common/launch.glsl"
#include "common/first_of.glsl"
#include "common/window.glsl"
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>
#include "common/tile.glsl"
uniform int n, c, h, w, o, oh, ow, pixels;
// A tile of more distinct pixels takes every tap, so that the search for the needed taps stays short.
#define MOST_CHECKED 4

int tap = -1, channel = 0;  // of the step to load
int loaded_channel;         // the first channel of the step that was loaded
int first_pixel, last_pixel;  // of the tile
ivec3 places[A_LOADS];        // the image, the row and the column of each load

// The pixel of dy that a place of x contributes to at a tap; -1 where there is none.
int dy_pixel(ivec2 place, int at_tap) {
    int y = place.x + PADDING_TOP - at_tap / KERNEL_W * DILATION_H;
    int column = place.y + PADDING_LEFT - at_tap % KERNEL_W * DILATION_W;
    if (y < 0 || column < 0 || y % STRIDE_H != 0 || column % STRIDE_W != 0) return -1;
    y /= STRIDE_H;
    column /= STRIDE_W;
    return y < oh && column < ow ? y * ow + column : -1;
}

ivec2 image_place(int pixel) {
    return ivec2(pixel / w, pixel % w);
}

// Whether any place of the tile reads dy at a tap.
bool needs_tap(int at_tap) {
    if (last_pixel - first_pixel >= MOST_CHECKED) return true;
    for (int pixel = first_pixel; pixel <= last_pixel; ++pixel)
        if (dy_pixel(image_place(pixel), at_tap) >= 0) return true;
    return false;
}

// The next tap that the tile needs; past the last one, any.
int next_tap(int at_tap) {
    for (++at_tap; at_tap < KERNEL_H * KERNEL_W; ++at_tap)
        if (needs_tap(at_tap)) return at_tap;
    return KERNEL_H * KERNEL_W - 1;
}

void load_step(int step) {
    loaded_channel = channel;
    int quads = (o + 3) / 4;
    for (int i = 0; i < A_LOADS; ++i) {
        int depth = channel + a_position(i * INVOCATIONS + lane).x;
        int pixel = dy_pixel(places[i].yz, tap);
        int at = (places[i].x * oh * ow + max(pixel, 0)) * quads + min(depth / 4, quads - 1);
        a_next[i] = first_of(dy[at], pixel < 0 ? 0 : o - depth);
    }
    for (int i = 0; i < B_LOADS; ++i) {
        ivec2 item = b_position(i * INVOCATIONS + lane);
        int row = tap * c + min(tile_column * 4 + item.y, c - 1);
        b_next[i] = weight[row * quads + min((channel + item.x) / 4, quads - 1)];
    }
    channel += BK;
    if (channel >= o) {
        channel = 0;
        tap = next_tap(tap);
    }
}

void store_step(int buffer_index) {
    if (loaded_channel + BK > o)  // padding may hold NaN, and 0 times NaN is NaN
        for (int i = 0; i < B_LOADS; ++i)
            b_next[i] = first_of(b_next[i], o - loaded_channel - b_position(i * INVOCATIONS + lane).x);
    store_tiles(buffer_index);
}

void finish_quad(int row_in_tile, int quad_in_tile, vec4 sums) {
    int place = tile_row + row_in_tile, quad = tile_column + quad_in_tile, quads = (c + 3) / 4;
    if (place >= pixels || quad >= quads) return;
    int pixel = place / n;
    int at = ((place - pixel * n) * h * w + pixel) * quads + quad;
    result[at] = epilogue(sums, at, quad);
}

void main() {
    locate_tile();
    for (int i = 0; i < A_LOADS; ++i) {
        int at = min(tile_row + a_position(i * INVOCATIONS + lane).y, pixels - 1), pixel = at / n;
        places[i] = ivec3(at - pixel * n, image_place(pixel));
    }
    first_pixel = tile_row / n;
    last_pixel = (min(tile_row + BM, pixels) - 1) / n;
    int taps = 0;
    for (int at = 0; at < KERNEL_H * KERNEL_W; ++at)
        if (needs_tap(at)) ++taps;
    if (taps > 0) {
        tap = next_tap(-1);
        int steps = taps * ((o + BK - 1) / BK);
        // Groups of rows or columns that lie outside of the result are not multiplied.
        if (GM > 1 && pixels - tile_row <= 4 * WG_Y)
            multiply_steps(steps, 1, GN);
        else if (GN > 1 && (c + 3) / 4 - tile_column <= WG_X)
            multiply_steps(steps, GM, 1);
        else
            multiply_steps(steps, GM, GN);
    }
    add_slices();
#if FINISH_SHARED
    finish_shared_sums();
#else
    for (int g = 0; g < GM; ++g)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < GN; ++j)
                finish_quad((g * WG_Y + row) * 4 + i, j * WG_X + column, sum[(g * 4 + i) * GN + j]);
#endif
}
