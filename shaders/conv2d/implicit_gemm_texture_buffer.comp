#version 310 es
// Implicit GEMM of texels: TM pixels by 4 TN output channels an invocation, as implicit_gemm. All weights
// of a step are loaded before they are multiplied (see matmul/gemm_texture_buffer.comp).
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 2
#endif
#ifndef X_TEXTURE
#define X_TEXTURE 1
#endif
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 1
#endif
#ifndef PADDED
#define PADDED 1
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#include "common/launch.glsl"
#include "conv2d/groups.glsl"
#include "conv2d/nhwc.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

// Four channels of the pixel at offset `pixel`, after the prologue.
vec4 prepared(int pixel, int quad, int image) { return prologue(x_at(pixel + quad), quad, image); }

void main() {
    int quads = (o + 3) / 4;  // of all groups
    int last = quads / GROUPS - 1;
    int quad = int(INVOCATION_ID.x) * TN;
    int pixel = int(INVOCATION_ID.y) * TM;
    int pixels = n * oh * ow;
    if (pixel >= pixels || quad > last) return;
    int group = int(WORKGROUP_ID.z);
    int first = group * (last + 1);
    int channels = c / GROUPS;
    int depth = (channels + 3) / 4;

    // Pixels and channels past the last one repeat it.
    ivec3 corners[TM];
    for (int i = 0; i < TM; ++i) corners[i] = corner(min(pixel + i, pixels - 1));
    int tile[TN];
    for (int j = 0; j < TN; ++j) tile[j] = (first + min(quad + j, last)) * 4;
    vec4 sum[TM * TN];
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int offset[TM];
            for (int i = 0; i < TM; ++i) offset[i] = pixel_at_tap(corners[i], ky, kx);
            int from = (ky * KERNEL_W + kx) * depth * quads * 4;
            for (int step = 0; step < depth; ++step) {
                vec4 a[TM];
                for (int i = 0; i < TM; ++i) {
#if PADDED
                    vec4 value = prepared(max(offset[i], 0), group * depth + step, corners[i].z);
                    a[i] = offset[i] < 0 ? vec4(0.0) : value;
#else
                    a[i] = prepared(offset[i], group * depth + step, corners[i].z);
#endif
#if RAGGED  // the padding of channels may hold anything
                    a[i] = first_of(a[i], channels - 4 * step);
#endif
                }
                for (int j = 0; j < TN; ++j) {
                    int t = from + step * quads * 4 + tile[j];
                    mat4 weights = mat4(WEIGHT(t), WEIGHT(t + 1), WEIGHT(t + 2), WEIGHT(t + 3));
                    for (int i = 0; i < TM; ++i) sum[i * TN + j] += weights * a[i];
                }
            }
        }
    }
    vec4 totals[TM * TN];  // a copy: Mesa does not unroll loops of long epilogues, and spills what they index
    for (int i = 0; i < TM * TN; ++i) totals[i] = sum[i];
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (pixel + i < pixels && quad + j <= last)
                finish(totals[i * TN + j], pixel + i, first + quad + j);
}
