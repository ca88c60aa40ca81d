#version 300 es
// Softmax along one axis by transform feedback: four elements a vertex, with the maximum and the
// sum of each row that they are of.
#include "common/nan.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int outer, extent, inner;
uniform int x_row, out_row;
out highp vec4 result;

// The maximum of the row that begins at `first`, and the sum of its exponentials.
vec2 whole(int first) {
    float most = uintBitsToFloat(0xff800000u);  // minus infinity
    for (int i = 0; i < extent; ++i) most = greater(most, texel(x, first + i * inner).x);
    float sum = 0.0;
    for (int i = 0; i < extent; ++i) sum += decayed(most - texel(x, first + i * inner).x);
    // Without a finite maximum all of the row is NaN, as differences of infinities are.
    return vec2(most, is_finite(most) ? sum : NAN);
}

void main() {
    int image = gl_VertexID * 4 / out_row;
    int start = image * x_row;
    // Places past the row's end are padding: they repeat its last element.
    int last = outer * extent * inner - 1;
    int row = -1;
    vec2 found = vec2(0.0);
    for (int i = 0; i < 4; ++i) {
        int element = min(gl_VertexID * 4 - image * out_row + i, last);
        int first = element / (extent * inner) * extent * inner + element % inner;
        if (first != row) found = whole(start + first);
        row = first;
        result[i] = decayed(found.x - texel(x, start + element).x) / found.y;
    }
}
