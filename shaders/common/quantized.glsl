// Weights packed in units of 32 (glnn/graph/quantization.py). FORMAT is GGML's number of their format,
// or INTEGER: unsigned integers of BITS bits, of which BLOCK share a scale, a half with HALF_SCALES,
// and with ZEROS a zero point, which is else the middle of their range. The memory is the block Weight,
// by words with PACKED_BY_WORDS, which a kernel whose neighbours take neighbouring words asks for, if
// its format has few of more than one word together; or the includer has PACKED(i), number i of the
// memory's uvec4. What unpacks a format is a case below. A weight is a value times its half unit's
// scale, plus the unit's minimum.
//
// To load words and to make numbers of them are functions apart, so that a kernel may have words on
// their way while it multiplies others: whoever makes numbers of words waits for these.
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
// GLSL 3.30 does not have it. Small numbers are made of integers: GPUs take small floats for 0.
float half_of(uint bits) {
    uint magnitude = bits & 0x7fffu;
    float found = magnitude < 0x400u ? float(magnitude) * exp2(-24.0)
                : magnitude < 0x7c00u  ? uintBitsToFloat((magnitude << 13) + (112u << 23))
                                       : uintBitsToFloat((magnitude << 13) | 0x7f800000u);
    return (bits & 0x8000u) == 0u ? found : -found;
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
    vec2 zeros;  // their zero points, where these are no constants
};

#ifndef PACKED_BY_WORDS
#define PACKED_BY_WORDS 0
#endif
#define WORDS_ALONE (FORMAT != F32 && FORMAT != F16 && FORMAT != BF16 && FORMAT != Q4_K && FORMAT != Q5_K)
#if PACKED_BY_WORDS && WORDS_ALONE
layout(std430, binding = 1) buffer Weight { uint weight[]; };
#define PACKED(i) uvec4(weight[4 * (i)], weight[4 * (i) + 1], weight[4 * (i) + 2], weight[4 * (i) + 3])
#elif !defined(PACKED)
layout(std430, binding = 1) buffer Weight { uvec4 weight[]; };
#define PACKED(i) weight[i]
#endif

// Word i of the memory. With SELECT_WORDS it is selected from the four that are loaded together, with 1
// where a unit's quants are one such load, with 2 always: for NVIDIA's compiler that is less work, for
// others it is more.
#ifndef SELECT_WORDS
#define SELECT_WORDS 0
#endif

uint packed_word(int i) {
#if PACKED_BY_WORDS && WORDS_ALONE
    return weight[i];
#elif SELECT_WORDS == 2 || SELECT_WORDS == 1 && UNIT_QUADS == 1
    uvec4 four = PACKED(i >> 2);
    uvec2 two = (i & 2) == 0 ? four.xy : four.zw;
    return (i & 1) == 0 ? two.x : two.y;
#else
    return PACKED(i >> 2)[i & 3];
#endif
}

// Which of two numbers part `part` of a unit takes: the first half's or the second's.
float of_part(vec2 both, int part) {
    return part < 4 ? both.x : both.y;
}

// An integer below 2^23 in the mantissa of 2^23, as a number. Drivers convert integers at a quarter
// of the rate of this.
vec4 small_integers(uvec4 v, float offset) {
    return uintBitsToFloat(v | 0x4b000000u) - (8388608.0 + offset);
}

// The bits of `mask` of each byte of a word, from bit `shift` of it on, as numbers less `offset`.
// They stay where they are in the mantissa and are scaled there, which is exact: one shift for all.
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

// What `scale_words` loaded for a unit, as numbers.
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
    // Scale and minimum of eight units: two halves, and six bits of each of a unit's.
    vec2 of_block = unpackHalf2x16(words.x);
    int shift = (unit & 3) * 8;
    uvec3 bytes = words.yzw >> shift;
    uvec2 six = (unit & 4) == 0 ? bytes.xy & 63u
                                : uvec2(bytes.z & 15u, (bytes.z >> 4) & 15u) | ((bytes.xy >> 6 & 3u) << 4);
    vec2 both = of_block * vec2(six);
    return Scales(vec2(both.x), -both.y, vec2(0.0));
#elif FORMAT == Q6_K
    // Scales of eight units: a byte for each half of each, and a half for all.
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
// The value of each of sixteen quants, four in a word.
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

// What `quant_words` loaded, as numbers to be scaled. zeros: those of the unit's `Scales`. shift: from
// which bit on quants of four bits lie in each byte, best a constant.
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

// Those of a part, as `quant_words` loads them.
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

// The words of weights 4 i to 4 i + 3 of all rows, each of which has whole units.
struct FourWords {
    uvec4 quants, scales;
};

FourWords four_words(int i) {
    return FourWords(quant_words(i >> 3, i & 7), scale_words(i >> 3));
}

// What `four_words` loaded for number i, as weights.
vec4 unpacked(FourWords words, int i) {
    int part = i & 7;
    Scales scales = scales_of(words.scales, i >> 3);
#if UNIT_QUADS == 1 && !TWO_BITS
    words.quants.x >>= part & 4;
#endif
    vec4 values = values_of(words.quants, part, 0, scales.zeros);
    return values * of_part(scales.scale, part) + scales.minimum;
}

// Weights 4 i to 4 i + 3 of all rows.
vec4 unpacked(int i) {
    return unpacked(four_words(i), i);
}
