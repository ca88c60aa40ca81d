// Weights packed in units of 32 (glnn/graph/quantization.py). FORMAT is GGML's number of their format,
// or INTEGER: unsigned integers of BITS bits, of which BLOCK share a scale, a half with HALF_SCALES,
// and with ZEROS a zero point, which is else the middle of their range. The includer has PACKED(i),
// number i of the memory's uvec4; what unpacks a format is a case below. A weight is a value times
// its half unit's scale, plus the unit's minimum.
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

struct Scales {
    vec2 scale;  // of the first 16 weights of a unit, and of the others
    float minimum;
};

uint packed_word(int i) {
    return PACKED(i >> 2)[i & 3];
}

// A byte of each word's four as a number: an integer below 2^23 in the mantissa of 2^23. Drivers
// convert integers at a quarter of the rate of this.
vec4 small_integers(uvec4 v, float offset) {
    return uintBitsToFloat(v | 0x4b000000u) - (8388608.0 + offset);
}

vec4 bytes_at(uint word, uint mask, int shift, float offset) {
    return small_integers((uvec4(word, word >> 8, word >> 16, word >> 24) >> shift) & mask, offset);
}

#if FORMAT == INTEGER
float scale_of(int block) {
#if HALF_SCALES
    vec2 both = unpackHalf2x16(packed_word(4 * scales_first + (block >> 1)));
    return (block & 1) == 0 ? both.x : both.y;
#else
    return uintBitsToFloat(packed_word(4 * scales_first + block));
#endif
}

float zero_of(int block) {
#if ZEROS
    return float((packed_word(4 * zeros_first + (block >> 2)) >> (8 * (block & 3))) & 255u);
#else
    return float(1 << (BITS - 1));
#endif
}

#if BLOCK < 32
Scales scales_of(int unit) {
    return Scales(vec2(scale_of(2 * unit), scale_of(2 * unit + 1)), 0.0);
}

vec2 zeros_of(int unit) {
    return vec2(zero_of(2 * unit), zero_of(2 * unit + 1));
}
#else
Scales scales_of(int unit) {
    return Scales(vec2(scale_of(unit / (BLOCK / 32))), 0.0);
}

vec2 zeros_of(int unit) {
    return vec2(zero_of(unit / (BLOCK / 32)));
}
#endif
#elif FORMAT == Q4_K || FORMAT == Q5_K
// Scale and minimum of eight units: two halves, and six bits of each of a unit's.
Scales scales_of(int unit) {
    uvec4 block = PACKED(scales_first + (unit >> 3));
    vec2 of_block = unpackHalf2x16(block.x);
    int shift = (unit & 3) * 8;
    uvec3 bytes = block.yzw >> shift;
    uvec2 six = (unit & 4) == 0 ? bytes.xy & 63u
                                : uvec2(bytes.z & 15u, (bytes.z >> 4) & 15u) | ((bytes.xy >> 6 & 3u) << 4);
    vec2 both = of_block * vec2(six);
    return Scales(vec2(both.x), -both.y);
}
#elif FORMAT == Q6_K
// Scales of eight units: a byte for each half of each, and a half for all.
Scales scales_of(int unit) {
    int block = scales_first + 2 * (unit >> 3);
    uint two = PACKED(block)[(unit >> 1) & 3] >> ((unit & 1) * 16);
    vec2 signed_bytes = vec2((ivec2(int(two) << 24, int(two) << 16)) >> 24);
    return Scales(unpackHalf2x16(PACKED(block + 1).x).x * signed_bytes, 0.0);
}
#elif FORMAT == Q4_1 || FORMAT == Q5_1
Scales scales_of(int unit) {
    vec2 both = unpackHalf2x16(packed_word(4 * scales_first + unit));
    return Scales(vec2(both.x), both.y);
}
#elif FORMAT == F32 || FORMAT == F16 || FORMAT == BF16
Scales scales_of(int unit) {
    return Scales(vec2(1.0), 0.0);
}
#else
Scales scales_of(int unit) {
    vec2 both = unpackHalf2x16(packed_word(4 * scales_first + (unit >> 1)));
    return Scales(vec2((unit & 1) == 0 ? both.x : both.y), 0.0);
}
#endif

#if FORMAT == IQ4_NL
// The value of each of sixteen quants, four in a word.
float value_of(uint quant) {
    const uvec4 table = uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    return float(int(table[quant >> 2] << (24u - 8u * (quant & 3u))) >> 24);
}
#endif

#if FORMAT != INTEGER
// Zero points of both halves of a unit: those of the other formats are constants.
vec2 zeros_of(int unit) {
    return vec2(0.0);
}
#endif

// Values of weights 4 part to 4 part + 3 of a unit, to be scaled; part is below 8. zeros: its `zeros_of`.
vec4 values_of(int unit, int part, vec2 zeros) {
#if FORMAT == INTEGER
#if BITS == 8
    return bytes_at(PACKED(2 * unit + (part >> 2))[part & 3], 255u, 0, zeros[part >> 2]);
#else
    return bytes_at(PACKED(unit)[part & 3], 15u, part & 4, zeros[part >> 2]);
#endif
#elif FORMAT == F32
    return uintBitsToFloat(PACKED(8 * unit + part));
#elif FORMAT == F16
    uvec4 words = PACKED(4 * unit + (part >> 1));
    uvec2 two = (part & 1) == 0 ? words.xy : words.zw;
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
#elif FORMAT == BF16
    uvec4 words = PACKED(4 * unit + (part >> 1));
    uvec2 two = (part & 1) == 0 ? words.xy : words.zw;
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xffff0000u, two.y << 16, two.y & 0xffff0000u));
#elif FORMAT == Q8_0
    uint word = PACKED(2 * unit + (part >> 2))[part & 3];
    return bytes_at(word ^ 0x80808080u, 255u, 0, 128.0);
#else
    uint word = PACKED(unit)[part & 3];
    int shift = part & 4;
#if FORMAT == IQ4_NL
    uvec4 quants = (uvec4(word, word >> 8, word >> 16, word >> 24) >> shift) & 15u;
    return vec4(value_of(quants.x), value_of(quants.y), value_of(quants.z), value_of(quants.w));
#elif FORMAT == Q4_0
    return bytes_at(word, 15u, shift, 8.0);
#elif FORMAT == Q4_1 || FORMAT == Q4_K
    return bytes_at(word, 15u, shift, 0.0);
#else
    uvec4 quants = (uvec4(word, word >> 8, word >> 16, word >> 24) >> shift) & 15u;
#if FORMAT == Q6_K
    uint high = packed_word(4 * high_first + 2 * unit + (part >> 2)) >> (8 * (part & 3));
    quants |= (uvec4(high, high >> 2, high >> 4, high >> 6) & 3u) << 4;
    return small_integers(quants, 32.0);
#else
    uint high = packed_word(4 * high_first + unit) >> (4 * part);
    quants |= (uvec4(high, high >> 1, high >> 2, high >> 3) & 1u) << 4;
    return small_integers(quants, FORMAT == Q5_0 ? 16.0 : 0.0);
#endif
#endif
#endif
}

// Weights 4 i to 4 i + 3 of all rows, each of which has whole units.
vec4 unpacked(int i) {
    int unit = i >> 3, part = i & 7;
    Scales scales = scales_of(unit);
    return values_of(unit, part, zeros_of(unit)) * scales.scale[part >> 2] + scales.minimum;
}
