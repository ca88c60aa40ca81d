// Numbers of float16, two in a word, the first of them in its lower half.
vec4 four_halves(uvec2 words) {
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}

// Number `i` of an array, of whose words this is number i / 2.
float one_half(uint word, int i) {
    return unpackHalf2x16(word)[i & 1];
}

// Four numbers as halves; what is beyond 65504 is infinite.
uvec2 halves_of(vec4 four) {
    return uvec2(packHalf2x16(four.xy), packHalf2x16(four.zw));
}
