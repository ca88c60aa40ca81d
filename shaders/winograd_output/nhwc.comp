#version 310 es
// A^T m A of the tiles of products, to channels-last images, pooled with POOL: one channel of a tile an
// invocation, or four where x is a texture (X_TEXTURE). The matrices are those of
// glnn/graph/operators/winograd.py.
#ifndef WG_X
#define WG_X 32
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef TILE
#define TILE 4
#endif
#include "common/launch.glsl"
#include "common/pooled.glsl"
#define WINDOW (TILE + 2)
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
#include "common/x_channels.glsl"
layout(std430, binding = 1) buffer Out { VALUE result[]; };
#include <epilogue>
uniform int o, oh, ow, tiles_down, tiles_across;
uniform int tiles, first_tile;  // of this launch
uniform int x_row, out_first, out_pixel;  // floats

VALUE[TILE] transform(VALUE m[WINDOW]) {
#if TILE == 2
    return VALUE[TILE](m[0] + m[1] + m[2], m[1] - m[2] + m[3]);
#else
    VALUE even = m[1] + m[2], odd = m[1] - m[2];
    VALUE even2 = m[3] + m[4], odd2 = m[3] - m[4];
    return VALUE[TILE](m[0] + even + even2, 0.70710678 * odd + 1.41421356 * odd2,
                       0.5 * even + 2.0 * even2, 0.35355339 * odd + 2.82842712 * odd2 + m[5]);
#endif
}

void main() {
    int channel = int(INVOCATION_ID.x);  // or the quad of channels
    int tile = int(INVOCATION_ID.y);
    if (channel >= (o + CHANNELS - 1) / CHANNELS || tile >= tiles) return;
    VALUE columns[WINDOW * TILE];
    for (int j = 0; j < WINDOW; ++j) {
        VALUE line[WINDOW];
        for (int i = 0; i < WINDOW; ++i)
            line[i] = X(((i * WINDOW + j) * tiles + tile) * (x_row / CHANNELS) + channel);
        VALUE values[TILE] = transform(line);
        for (int i = 0; i < TILE; ++i) columns[i * WINDOW + j] = values[i];
    }
    int image = (first_tile + tile) / (tiles_down * tiles_across);
    int tile_of_image = first_tile + tile - image * tiles_down * tiles_across;
    int top = tile_of_image / tiles_across * TILE, left = tile_of_image % tiles_across * TILE;
    for (int i = 0; i < TILE; i += SIDE) {
        VALUE values[SIDE * TILE];
        for (int row = 0; row < SIDE; ++row) {
            VALUE line[WINDOW];
            for (int j = 0; j < WINDOW; ++j) line[j] = columns[(i + row) * WINDOW + j];
            VALUE row_values[TILE] = transform(line);
            for (int j = 0; j < TILE; ++j) values[row * TILE + j] = row_values[j];
        }
        for (int j = 0; j < TILE; j += SIDE) {
            int y = (top + i) / SIDE, column = (left + j) / SIDE;
            if (y >= oh || column >= ow) continue;
            int offset = (out_first + ((image * oh + y) * ow + column) * out_pixel) / CHANNELS + channel;
#if POOL
            VALUE a = epilogue(values[j], offset, channel), b = epilogue(values[j + 1], offset, channel);
            VALUE c = epilogue(values[TILE + j], offset, channel);
            VALUE d = epilogue(values[TILE + j + 1], offset, channel);
            result[offset] = POOLED(a, b, c, d);
#else
            result[offset] = epilogue(values[j], offset, channel);
#endif
        }
    }
}
