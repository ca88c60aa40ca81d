// Numbers of float16, two in a word, the first of them in its lower half.
vec4 four_halves(uvec2 words) {
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}

// Number `i` of an array, from its word i / 2.
float one_half(uint word, int i) {
    return unpackHalf2x16(word)[i & 1];
}

// The half for the bits of a float beyond 65504: infinite or NaN.
uint half_beyond(uint bits) {
    return ((bits >> 16) & 0x8000u) | ((bits & 0x7fffffffu) > 0x7f800000u ? 0x7e00u : 0x7c00u);
}

// Two numbers as halves. SwiftShader's packHalf2x16 gives NaN for a number beyond 65504, and from 131072 on
// for both.
uint two_halves(vec2 two) {
    uint word = packHalf2x16(clamp(two, -65504.0, 65504.0));
    uvec2 bits = floatBitsToUint(two);
    if ((bits.x & 0x7fffffffu) >= 0x477ff000u) word = (word & 0xffff0000u) | half_beyond(bits.x);
    if ((bits.y & 0x7fffffffu) >= 0x477ff000u) word = (word & 0xffffu) | half_beyond(bits.y) << 16;
    return word;
}

// Four numbers as halves; those beyond 65504 are infinite.
uvec2 halves_of(vec4 four) {
    return uvec2(two_halves(four.xy), two_halves(four.zw));
}
