#version 310 es
// Implicit GEMM: TM pixels by 4 TN output channels an invocation, no shared memory. The rows of the
// patch matrix are gathered as they are multiplied, and never stored. The corners of all windows stay in
// registers with KEEP 2, that of the first with KEEP 1; the others are computed for each tap, one from the
// other. With PARTS each tap is summed separately, which makes long sums three times as exact and takes
// twice the registers. With TOGETHER the weights of all TN quads are in registers at once: Mesa unrolls
// that where weights are halves.
#define WEIGHT_TILES 1
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
#define TN 1
#endif
#ifndef KEEP
#define KEEP 0
#endif
#ifndef PARTS
#define PARTS 0
#endif
#ifndef TOGETHER
#define TOGETHER 0
#endif
#if TOGETHER
#define WIDE TN
#else
#define WIDE 1
#endif
#include "common/launch.glsl"
#include "conv2d/groups.glsl"
#include "conv2d/nhwc.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
uniform int taps;

void main() {
    int quads = (o + 3) / 4;  // of all groups
    int last = quads / GROUPS - 1;
    int quad = int(INVOCATION_ID.x) * TN;
    int pixel = int(INVOCATION_ID.y) * TM;
    int pixels = n * oh * ow;
    if (pixel >= pixels || quad > last) return;
    int group = int(WORKGROUP_ID.z);
    int first = group * (last + 1);

#if KEEP == 2
    ivec3 corners[TM];
    corners[0] = corner(pixel);
    for (int i = 1; i < TM; ++i) corners[i] = next_corner(corners[i - 1]);
#define BEGIN corners[0]
#elif KEEP == 1
    ivec3 begin = corner(pixel);
#define BEGIN begin
#else
#define BEGIN corner(pixel)
#endif
    vec4 sum[TM * TN];
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
    int channels = c / GROUPS;
    int depth = (channels + 3) / 4;
    // tap: index of its first tile. Compilers would unroll a loop over a constant number of taps, and spill.
    for (int tap = 0, ky = 0, kx = 0; tap < taps * depth; tap += depth) {
        int offset[TM], image[TM];
        ivec3 corner_i = BEGIN;
        for (int i = 0; i < TM; ++i) {
#if KEEP == 2
            corner_i = corners[i];
#else
            if (i > 0) corner_i = next_corner(corner_i);
#endif
            offset[i] = pixel_at_tap(corner_i, ky, kx);
            image[i] = corner_i.z;
        }
#if PARTS
        vec4 total[TM * TN];
        for (int i = 0; i < TM * TN; ++i) {
            total[i] = sum[i];
            sum[i] = vec4(0.0);
        }
#endif
        for (int step = 0; step < depth; ++step) {
            vec4 a[TM];
            for (int i = 0; i < TM; ++i) {
                int channel_quad = group * depth + step;
                vec4 value = prologue(X_AT(max(offset[i], 0) + channel_quad), channel_quad, image[i]);
                a[i] = offset[i] < 0 ? vec4(0.0) : value;
            }
            if (4 * step + 4 > channels)  // the padding of channels may hold anything
                for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], channels - 4 * step);
            for (int q = 0; q < TN; q += WIDE) {
                TILE tiles[WIDE];
                for (int j = 0; j < WIDE; ++j)
                    tiles[j] = READ_TILE((tap + step) * quads + first + min(quad + q + j, last));
                for (int l = 0; l < 4; ++l) {
                    vec4 b[WIDE];
                    for (int j = 0; j < WIDE; ++j) b[j] = OF_TILE(tiles[j], l);
                    for (int i = 0; i < TM; ++i)
                        for (int j = 0; j < WIDE; ++j) sum[i * TN + q + j] += a[i][l] * b[j];
                }
            }
        }
#if PARTS
        for (int i = 0; i < TM * TN; ++i) sum[i] += total[i];
#endif
        kx = kx + 1 < KERNEL_W ? kx + 1 : 0;
        if (kx == 0) ++ky;
    }
    vec4 totals[TM * TN];  // a copy: Mesa does not unroll the loop below, and spills what it indexes
    for (int i = 0; i < TM * TN; ++i) totals[i] = sum[i];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (pixel + i < pixels && quad + j <= last)
                finish(totals[i * TN + j], pixel + i, first + quad + j);
}
