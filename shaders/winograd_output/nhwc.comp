#version 310 es
// A^T m A of the tiles of products, one channel of a tile an invocation, or of texels
// (X_TEXTURE) four, to channels-last images, or pooled (POOL). The matrices are those of
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
#include "common/lanes.glsl"
layout(std430, binding = 1) buffer Out { NUMBER result[]; };
#include <epilogue>
uniform int o, oh, ow, tiles_down, tiles_across;
uniform int tiles, first_tile;  // of this launch
uniform int x_row, out_first, out_pixel;  // floats

NUMBER[TILE] transformed(NUMBER m[WINDOW]) {
#if TILE == 2
    return NUMBER[TILE](m[0] + m[1] + m[2], m[1] - m[2] + m[3]);
#else
    NUMBER even = m[1] + m[2], odd = m[1] - m[2];
    NUMBER even2 = m[3] + m[4], odd2 = m[3] - m[4];
    return NUMBER[TILE](m[0] + even + even2, 0.70710678 * odd + 1.41421356 * odd2,
                       0.5 * even + 2.0 * even2, 0.35355339 * odd + 2.82842712 * odd2 + m[5]);
#endif
}

void main() {
    int channel = int(INVOCATION_ID.x);  // or the quad of channels
    int tile = int(INVOCATION_ID.y);
    if (channel >= (o + LANES - 1) / LANES || tile >= tiles) return;
    NUMBER columns[WINDOW * TILE];
    for (int j = 0; j < WINDOW; ++j) {
        NUMBER line[WINDOW];
        for (int i = 0; i < WINDOW; ++i)
            line[i] = X(((i * WINDOW + j) * tiles + tile) * (x_row / LANES) + channel);
        NUMBER met[TILE] = transformed(line);
        for (int i = 0; i < TILE; ++i) columns[i * WINDOW + j] = met[i];
    }
    int image = (first_tile + tile) / (tiles_down * tiles_across);
    int place = first_tile + tile - image * tiles_down * tiles_across;
    int top = place / tiles_across * TILE, left = place % tiles_across * TILE;
    for (int i = 0; i < TILE; i += SIDE) {
        NUMBER met[SIDE * TILE];
        for (int row = 0; row < SIDE; ++row) {
            NUMBER line[WINDOW];
            for (int j = 0; j < WINDOW; ++j) line[j] = columns[(i + row) * WINDOW + j];
            NUMBER own[TILE] = transformed(line);
            for (int j = 0; j < TILE; ++j) met[row * TILE + j] = own[j];
        }
        for (int j = 0; j < TILE; j += SIDE) {
            int y = (top + i) / SIDE, column = (left + j) / SIDE;
            if (y >= oh || column >= ow) continue;
            int at = (out_first + ((image * oh + y) * ow + column) * out_pixel) / LANES + channel;
#if POOL
            NUMBER a = epilogue(met[j], at, channel), b = epilogue(met[j + 1], at, channel);
            NUMBER c = epilogue(met[TILE + j], at, channel);
            NUMBER d = epilogue(met[TILE + j + 1], at, channel);
            result[at] = POOLED(a, b, c, d);
#else
            result[at] = epilogue(met[j], at, channel);
#endif
        }
    }
}
