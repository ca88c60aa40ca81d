// The operands of attention, vec4 with WIDE, and how their tokens lie; NOTHING is what rows without
// a softmax are, LEAST the least float.
#ifndef WIDE
#define WIDE 0
#endif
#ifndef HAS_MASK
#define HAS_MASK 0
#endif
#ifndef ZEROS
#define ZEROS 0
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "common/nan.glsl"
#if ZEROS
#define NOTHING 0.0
#else
#define NOTHING NAN
#endif
#define LEAST uintBitsToFloat(0xff7fffffu)
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
uniform int mask_start, mask_sample, mask_head, mask_token, mask_step;
#endif
uniform int heads, queries, keys, width, columns;
uniform int q_start, q_sample, q_head, q_token;
uniform int k_start, k_sample, k_head, k_token;
uniform int v_start, v_sample, v_head, v_token;
uniform int out_sample, out_head, out_token;
uniform float scale;

// Four numbers from `at` on, of which `left` are there; zeros behind them.
#if WIDE
#define FOUR(numbers, at, left) ((left) > 0 ? numbers[(at) / 4] : vec4(0.0))
#else
#define FOUR(numbers, at, left) \
    vec4((left) > 0 ? numbers[at] : 0.0, (left) > 1 ? numbers[(at) + 1] : 0.0, \
         (left) > 2 ? numbers[(at) + 2] : 0.0, (left) > 3 ? numbers[(at) + 3] : 0.0)
#endif
