// Flat arrays of texels. Each operand NAME is declared as a NAME_SAMPLER, which the host defines as the
// sampler type of a texture buffer, a texture, or a texture array, with the layout of DataTexture.
#ifndef X_SAMPLER
#define X_SAMPLER sampler2D
#endif
#ifndef WEIGHT_SAMPLER
#define WEIGHT_SAMPLER sampler2D
#endif
#ifndef BIAS_SAMPLER
#define BIAS_SAMPLER sampler2D
#endif

vec4 texel(highp sampler2D array, int i) {
    return texelFetch(array, ivec2(i & 2047, i >> 11), 0);
}

vec4 texel(highp sampler2DArray array, int i) {
    return texelFetch(array, ivec3(i & 2047, (i >> 11) & 2047, i >> 22), 0);
}

ivec4 texel(highp isampler2D array, int i) {
    return texelFetch(array, ivec2(i & 2047, i >> 11), 0);
}

ivec4 texel(highp isampler2DArray array, int i) {
    return texelFetch(array, ivec3(i & 2047, (i >> 11) & 2047, i >> 22), 0);
}

#if !defined(GL_ES) || __VERSION__ >= 320
vec4 texel(highp samplerBuffer array, int i) {
    return texelFetch(array, i);
}

ivec4 texel(highp isamplerBuffer array, int i) {
    return texelFetch(array, i);
}
#endif
