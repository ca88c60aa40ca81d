// A vertex captures VECTORS neighbouring vec4 of the result, since starting a vertex may cost more than
// capturing several; `vector(i)` is the i-th vec4 of the result. Past the end, the last one is repeated.
#ifndef VECTORS
#define VECTORS 4
#endif
#ifndef NUMBERS
#define NUMBERS vec4  // or ivec4
#endif
uniform int out_size;
flat out highp NUMBERS result[VECTORS];

void main() {
    int last = (out_size + 3) / 4 - 1;
    for (int i = 0; i < VECTORS; ++i) result[i] = vector(min(gl_VertexID * VECTORS + i, last));
}
