// The operands of attention, vec4 with WIDE, and the offsets of their tokens. NOTHING is the result of rows
// without a softmax.
#ifndef WIDE
#define WIDE 0
#endif
#ifndef HAS_MASK
#define HAS_MASK 0
#endif
#ifndef ZEROS
#define ZEROS 0
#endif
#ifndef WINDOWED
#define WINDOWED 0
#endif
#ifndef PARTIAL
#define PARTIAL 0
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/nan.glsl"
#if ZEROS && !PARTIAL
#define NOTHING 0.0
#else
#define NOTHING NAN
#endif
#if WIDE
#define NUMBERS vec4
#else
#define NUMBERS float
#endif
layout(std430, binding = 0) buffer Q { NUMBERS q[]; };
layout(std430, binding = 1) buffer K { NUMBERS k[]; };
layout(std430, binding = 2) buffer V { NUMBERS v[]; };
layout(std430, binding = 3) buffer Out { NUMBERS result[]; };
#if HAS_MASK
layout(std430, binding = 4) buffer Mask { float mask[]; };
uniform int mask_start, mask_sample, mask_head, mask_token, mask_step, masks;
#endif
uniform int heads, queries, keys, width, columns;
uniform int q_start, q_sample, q_head, q_token;
uniform int k_start, k_sample, k_head, k_token;
uniform int v_start, v_sample, v_head, v_token;
uniform int out_sample, out_head, out_token;
uniform float scale;

int image, head;  // of this workgroup

// Offsets of the head, computed where they are needed: V3D has too few registers to keep them.
#define Q_FROM (q_start + image * q_sample + head * q_head)
#define K_FROM (k_start + image * k_sample + head * k_head)
#define V_FROM (v_start + image * v_sample + head * v_head)
#define OUT_FROM (image * out_sample + head * out_head)
#if HAS_MASK
int mask_from;
#endif

#if WINDOWED
uniform int window_rows, window_columns, window_height, window_width, window_down, window_right;
int window_top, window_left;  // corner of the window in the image

// The index in the image of a token of the window.
int place(int token) {
    int image_height = window_rows * window_height, image_width = window_columns * window_width;
    int down = token / window_width, right = token - down * window_width;
    down += window_top;
    right += window_left;
    return (down < image_height ? down : down - image_height) * image_width
         + (right < image_width ? right : right - image_width);
}
#else
#define place(token) (token)
#endif

// Sets the image and the head for index `stack`, which counts the heads of all samples.
void find_head(int stack) {
    image = stack / heads;
    head = stack - image * heads;
#if HAS_MASK
    mask_from = mask_start + image % masks * mask_sample + head * mask_head;
#endif
#if WINDOWED
    int count = window_rows * window_columns, window = image;
    image /= count;
    window -= image * count;
    int row = window / window_columns;
    window_top = row * window_height + window_down;
    window_left = (window - row * window_columns) * window_width + window_right;
#endif
}

// Four numbers from index `at` on; zeros past the `left` that are inside.
#if WIDE
#define FOUR(numbers, at, left) ((left) > 0 ? numbers[(at) >> 2] : vec4(0.0))
#else
#define FOUR(numbers, at, left) \
    vec4((left) > 0 ? numbers[at] : 0.0, (left) > 1 ? numbers[(at) + 1] : 0.0, \
         (left) > 2 ? numbers[(at) + 2] : 0.0, (left) > 3 ? numbers[(at) + 3] : 0.0)
#endif
