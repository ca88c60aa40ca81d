// A vertex takes four vec4 of x and captures as many: the i-th of the result is `vector(i, value)`,
// where value is the i-th of x. An attribute is read from the buffer itself, on every device.
in highp mat4 x;
out highp mat4 result;

void main() {
    for (int j = 0; j < 4; ++j) result[j] = vector(gl_VertexID * 4 + j, x[j]);
}
