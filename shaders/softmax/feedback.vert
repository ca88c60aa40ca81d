#version 300 es
// Softmax along one axis by transform feedback: four elements a vertex, each element with the
// maximum and the sum of its own row.
#include "common/nan.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x;
uniform int outer, extent, inner;
uniform int x_row, out_row;
out highp vec4 result;

float softmax(int start, int element) {
    int first = element / (extent * inner) * extent * inner + element % inner;
    float most = uintBitsToFloat(0xff800000u);  // minus infinity
    for (int i = 0; i < extent; ++i) most = greater(most, texel(x, start + first + i * inner).x);
    float sum = 0.0;
    for (int i = 0; i < extent; ++i) sum += exp(texel(x, start + first + i * inner).x - most);
    return exp(texel(x, start + element).x - most) / sum;
}

void main() {
    int image = gl_VertexID * 4 / out_row;
    int element = gl_VertexID * 4 - image * out_row;
    int start = image * x_row;
    // Places past the row's end are padding: they repeat its last element.
    int last = outer * extent * inner - 1;
    result = vec4(softmax(start, min(element, last)), softmax(start, min(element + 1, last)),
                  softmax(start, min(element + 2, last)), softmax(start, min(element + 3, last)));
}
