// A flat array in a texture: element i is the texel (i & 2047, i >> 11), as DataTexture lays it out.
vec4 texel(highp sampler2D array, int i) {
    return texelFetch(array, ivec2(i & 2047, i >> 11), 0);
}
