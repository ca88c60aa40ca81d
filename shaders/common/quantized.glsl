// Weights packed in units of 32 (glnn/graph/quantization.py). FORMAT is GGML's number of the format, or
// INTEGER: unsigned integers of BITS bits. BLOCK integers share a scale, a half with HALF_SCALES, and with
// ZEROS a zero point; without, the zero point is the middle of their range. A weight is a value times the
// scale of its half unit, plus the unit's minimum. Each format is a case in the functions below.
//
// The memory is the block Weight, declared as words with PACKED_BY_WORDS, for kernels whose neighbouring
// invocations load neighbouring words, and for formats that load one word at a time. Or the includer
// defines PACKED(i), the i-th uvec4 of the memory.
//
// Functions that load words are separate from those that convert them to numbers, which have to wait for
// the words: so a kernel can load words while it multiplies others.
#define INTEGER -1
#define F32 0
#define F16 1
#define Q4_0 2
#define Q4_1 3
#define Q5_0 6
#define Q5_1 7
#define Q8_0 8
#define Q4_K 12
#define Q5_K 13
#define Q6_K 14
#define IQ4_NL 20
#define BF16 30
#ifndef FORMAT
#define FORMAT F32
#endif
#define HAS_MINIMUM (FORMAT == Q4_1 || FORMAT == Q5_1 || FORMAT == Q4_K || FORMAT == Q5_K)
#ifndef BITS
#define BITS 4
#endif
#ifndef BLOCK
#define BLOCK 32
#endif
#ifndef ZEROS
#define ZEROS 0
#endif
#ifndef HALF_SCALES
#define HALF_SCALES 0
#endif
#define TWO_BITS (FORMAT == INTEGER && BITS == 2)
uniform int high_first, scales_first, zeros_first;  // in uvec4

#if !defined(GL_ES) && __VERSION__ < 420
// For GLSL 3.30. Subnormal halves are computed from integers, since GPUs flush small floats to 0.
float half_of(uint bits) {
    uint magnitude = bits & 0x7fffu;
    float value = magnitude < 0x400u ? float(magnitude) * exp2(-24.0)
                : magnitude < 0x7c00u  ? uintBitsToFloat((magnitude << 13) + (112u << 23))
                                       : uintBitsToFloat((magnitude << 13) | 0x7f800000u);
    return (bits & 0x8000u) == 0u ? value : -value;
}

vec2 unpackHalf2x16(uint word) {
    return vec2(half_of(word & 0xffffu), half_of(word >> 16));
}
#endif

#if FORMAT == F32
#define UNIT_QUADS 8  // uvec4 of a unit's quants
#elif FORMAT == F16 || FORMAT == BF16
#define UNIT_QUADS 4
#elif FORMAT == Q8_0 || FORMAT == INTEGER && BITS == 8
#define UNIT_QUADS 2
#else
#define UNIT_QUADS 1  // with TWO_BITS half of one
#endif

struct Scales {
    vec2 scale;  // of the first 16 weights of a unit, and of the others
    float minimum;
    vec2 zeros;  // zero points of the two halves, where they are stored
};

#ifndef PACKED_BY_WORDS
#define PACKED_BY_WORDS 0
#endif
#define LOADS_SINGLE_WORDS (FORMAT != F32 && FORMAT != F16 && FORMAT != BF16 && FORMAT != Q4_K && FORMAT != Q5_K)
#if PACKED_BY_WORDS && LOADS_SINGLE_WORDS
layout(std430, binding = 1) buffer Weight { uint weight[]; };
#define PACKED(i) uvec4(weight[4 * (i)], weight[4 * (i) + 1], weight[4 * (i) + 2], weight[4 * (i) + 3])
#elif !defined(PACKED)
layout(std430, binding = 1) buffer Weight { uvec4 weight[]; };
#define PACKED(i) weight[i]
#endif

// Word i of the memory. With SELECT_WORDS it is selected from a uvec4 that is loaded: with 1 where a unit's
// quants are one uvec4, with 2 always. That is faster with NVIDIA's compiler and slower with others.
#ifndef SELECT_WORDS
#define SELECT_WORDS 0
#endif

uint packed_word(int i) {
#if PACKED_BY_WORDS && LOADS_SINGLE_WORDS
    return weight[i];
#elif SELECT_WORDS == 2 || SELECT_WORDS == 1 && UNIT_QUADS == 1
    uvec4 four = PACKED(i >> 2);
    uvec2 two = (i & 2) == 0 ? four.xy : four.zw;
    return (i & 1) == 0 ? two.x : two.y;
#else
    return PACKED(i >> 2)[i & 3];
#endif
}

// The number of the half of a unit that `part`, four weights, is in.
float of_part(vec2 both, int part) {
    return part < 4 ? both.x : both.y;
}

// Integers below 2^23 as floats less `offset`, by way of the mantissa of 2^23: drivers convert integers at a
// quarter of this rate.
vec4 small_integers(uvec4 v, float offset) {
    return uintBitsToFloat(v | 0x4b000000u) - (8388608.0 + offset);
}

// The bits of `mask` of each byte of a word, from bit `shift` of the byte on, as numbers less `offset`. They
// are not shifted but scaled as part of the mantissa, which is exact: one shift serves all bytes.
vec4 bytes_of(uint word, uint mask, int shift, float offset) {
    uvec2 low = uvec2(mask << shift, mask << (shift + 8));
    vec2 place = vec2(1.0 / float(1 << shift), 1.0 / float(256 << shift));
    uvec4 bits = uvec4(low & word, low & (word >> 16)) | 0x4b000000u;
    return uintBitsToFloat(bits) * place.xyxy - (8388608.0 * place.xyxy + offset);
}

// The words of a unit's scales and zero points.
uvec4 scale_words(int unit) {
    uvec4 words = uvec4(0u);
#if FORMAT == INTEGER
#if BLOCK < 32
    int block = 2 * unit;
#else
    int block = unit / (BLOCK / 32);
#endif
#if HALF_SCALES
    words.x = packed_word(4 * scales_first + (block >> 1));
#else
    words.x = packed_word(4 * scales_first + block);
#if BLOCK < 32
    words.y = packed_word(4 * scales_first + block + 1);
#endif
#endif
#if ZEROS
    words.z = packed_word(4 * zeros_first + (block >> 2));
#endif
#elif FORMAT == Q4_K || FORMAT == Q5_K
    words = PACKED(scales_first + (unit >> 3));
#elif FORMAT == Q6_K
    int block = scales_first + 2 * (unit >> 3);
    words.xy = uvec2(packed_word(4 * block + ((unit >> 1) & 3)), packed_word(4 * block + 4));
#elif FORMAT == Q4_1 || FORMAT == Q5_1
    words.x = packed_word(4 * scales_first + unit);
#elif FORMAT != F32 && FORMAT != F16 && FORMAT != BF16
    words.x = packed_word(4 * scales_first + (unit >> 1));
#endif
    return words;
}

#if FORMAT == INTEGER
float integer_scale(uint word, int block) {
#if HALF_SCALES
    vec2 both = unpackHalf2x16(word);
    return (block & 1) == 0 ? both.x : both.y;
#else
    return uintBitsToFloat(word);
#endif
}

float integer_zero(uint word, int block) {
#if ZEROS
    return float((word >> (8 * (block & 3))) & 255u);
#else
    return float(1 << (BITS - 1));
#endif
}
#endif

// Converts the words that `scale_words` loaded for a unit.
Scales scales_of(uvec4 words, int unit) {
#if FORMAT == INTEGER
#if BLOCK < 32
    int block = 2 * unit;
    uint second = HALF_SCALES == 1 ? words.x : words.y;
    vec2 scale = vec2(integer_scale(words.x, block), integer_scale(second, block + 1));
    return Scales(scale, 0.0, vec2(integer_zero(words.z, block), integer_zero(words.z, block + 1)));
#else
    int block = unit / (BLOCK / 32);
    return Scales(vec2(integer_scale(words.x, block)), 0.0, vec2(integer_zero(words.z, block)));
#endif
#elif FORMAT == Q4_K || FORMAT == Q5_K
    // Scale and minimum: two halves for eight units, times six bits for each unit.
    vec2 of_block = unpackHalf2x16(words.x);
    int shift = (unit & 3) * 8;
    uvec3 bytes = words.yzw >> shift;
    uvec2 six = (unit & 4) == 0 ? bytes.xy & 63u
                                : uvec2(bytes.z & 15u, (bytes.z >> 4) & 15u) | ((bytes.xy >> 6 & 3u) << 4);
    vec2 both = of_block * vec2(six);
    return Scales(vec2(both.x), -both.y, vec2(0.0));
#elif FORMAT == Q6_K
    // Scales: a half for eight units, times a byte for each half unit.
    uint two = words.x >> ((unit & 1) * 16);
    vec2 signed_bytes = vec2((ivec2(int(two) << 24, int(two) << 16)) >> 24);
    return Scales(unpackHalf2x16(words.y).x * signed_bytes, 0.0, vec2(0.0));
#elif FORMAT == Q4_1 || FORMAT == Q5_1
    vec2 both = unpackHalf2x16(words.x);
    return Scales(vec2(both.x), both.y, vec2(0.0));
#elif FORMAT == F32 || FORMAT == F16 || FORMAT == BF16
    return Scales(vec2(1.0), 0.0, vec2(0.0));
#else
    vec2 both = unpackHalf2x16(words.x);
    return Scales(vec2((unit & 1) == 0 ? both.x : both.y), 0.0, vec2(0.0));
#endif
}

#if FORMAT == IQ4_NL
// The value of one of sixteen quants, from a table with four in a word.
float value_of(uint quant) {
    const uvec4 table = uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    return float(int(table[quant >> 2] << (24u - 8u * (quant & 3u))) >> 24);
}
#endif

// The words of weights 4 part to 4 part + 3 of a unit; part is below 8.
uvec4 quant_words(int unit, int part) {
    uvec4 words = uvec4(0u);
#if UNIT_QUADS == 8
    words = PACKED(8 * unit + part);
#elif UNIT_QUADS == 4
    uvec4 eight = PACKED(4 * unit + (part >> 1));
    words.xy = (part & 1) == 0 ? eight.xy : eight.zw;
#elif UNIT_QUADS == 2
    words.x = packed_word(8 * unit + part);
#elif TWO_BITS
    words.x = packed_word(2 * unit + (part >> 2));
#else
    words.x = packed_word(4 * unit + (part & 3));
#endif
#if FORMAT == Q6_K
    words.y = packed_word(4 * high_first + 2 * unit + (part >> 2));
#elif FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q5_K
    words.y = packed_word(4 * high_first + unit);
#endif
    return words;
}

// Converts the words that `quant_words` loaded to unscaled numbers. zeros: those of the unit's `Scales`.
// shift: first bit, in each byte, of quants of four bits, best a constant.
vec4 values_of(uvec4 words, int part, int shift, vec2 zeros) {
#if FORMAT == F32
    return uintBitsToFloat(words);
#elif FORMAT == F16
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
#elif FORMAT == BF16
    return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
#elif FORMAT == INTEGER && BITS == 8
    return bytes_of(words.x, 255u, 0, of_part(zeros, part));
#elif TWO_BITS
    uint bits = words.x >> (8 * (part & 3));
    return small_integers(uvec4(bits, bits >> 2, bits >> 4, bits >> 6) & 3u, of_part(zeros, part));
#elif FORMAT == INTEGER
    return bytes_of(words.x, 15u, shift, of_part(zeros, part));
#elif FORMAT == Q8_0
    return bytes_of(words.x ^ 0x80808080u, 255u, 0, 128.0);
#elif FORMAT == Q4_0
    return bytes_of(words.x, 15u, shift, 8.0);
#elif FORMAT == Q4_1 || FORMAT == Q4_K
    return bytes_of(words.x, 15u, shift, 0.0);
#else
    uvec4 quants = (uvec4(words.x, words.x >> 8, words.x >> 16, words.x >> 24) >> shift) & 15u;
#if FORMAT == IQ4_NL
    return vec4(value_of(quants.x), value_of(quants.y), value_of(quants.z), value_of(quants.w));
#elif FORMAT == Q6_K
    uint high = words.y >> (8 * (part & 3));
    quants |= (uvec4(high, high >> 2, high >> 4, high >> 6) & 3u) << 4;
    return small_integers(quants, 32.0);
#else
    uint high = words.y >> (4 * part);
    quants |= (uvec4(high, high >> 1, high >> 2, high >> 3) & 1u) << 4;
    return small_integers(quants, FORMAT == Q5_0 ? 16.0 : 0.0);
#endif
#endif
}

#if UNIT_QUADS <= 2
// All words of a unit.
struct UnitWords {
    uvec4 quants[UNIT_QUADS];
    uvec2 high;
    uvec4 scales;
};

UnitWords unit_words(int unit) {
    UnitWords words;
#if TWO_BITS
    uvec4 both = PACKED(unit >> 1);
    words.quants[0] = (unit & 1) == 0 ? both : both.zwxy;
#else
    for (int i = 0; i < UNIT_QUADS; ++i) words.quants[i] = PACKED(UNIT_QUADS * unit + i);
#endif
#if FORMAT == Q6_K
    int at = 4 * high_first + 2 * unit;
    words.high = uvec2(packed_word(at), packed_word(at + 1));
#elif FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q5_K
    words.high = uvec2(packed_word(4 * high_first + unit), 0u);
#else
    words.high = uvec2(0u);
#endif
    words.scales = scale_words(unit);
    return words;
}

// The words of a part, as `quant_words` loads them.
uvec4 words_of(UnitWords words, int part) {
    uint high = words.high[FORMAT == Q6_K ? part >> 2 : 0];
#if TWO_BITS
    uint word = words.quants[0][part >> 2];
#else
    uint word = words.quants[UNIT_QUADS == 2 ? part >> 2 : 0][part & 3];
#endif
    return uvec4(word, high, 0u, 0u);
}
#endif

vec4 values_of(uvec4 words, int part, vec2 zeros) {
    return values_of(words, part, part & 4, zeros);
}

// The words of weights 4 i to 4 i + 3, counted through all rows, which have whole units.
struct FourWords {
    uvec4 quants, scales;
};

FourWords four_words(int i) {
    return FourWords(quant_words(i >> 3, i & 7), scale_words(i >> 3));
}

// Converts the words that `four_words` loaded for index i to weights.
vec4 unpacked(FourWords words, int i) {
    int part = i & 7;
    Scales scales = scales_of(words.scales, i >> 3);
#if UNIT_QUADS == 1 && !TWO_BITS
    words.quants.x >>= part & 4;
#endif
    vec4 values = values_of(words.quants, part, 0, scales.zeros);
    return values * of_part(scales.scale, part) + scales.minimum;
}

// Weights 4 i to 4 i + 3, counted through all rows.
vec4 unpacked(int i) {
    return unpacked(four_words(i), i);
}
