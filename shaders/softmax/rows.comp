#version 310 es
// Softmax along one axis: a workgroup a row, its lanes share the maximum and the sum.
#ifndef WG_X
#define WG_X 32
#endif
#include "common/nan.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, outer, extent, inner;
uniform int x_row, out_row;
shared float lanes[WG_X];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = n * outer * inner;
    for (int row = int(gl_WorkGroupID.y); row < rows; row += int(gl_NumWorkGroups.y)) {
        int image = row / (outer * inner);
        int rest = row - image * outer * inner;
        int first = rest / inner * extent * inner + rest % inner;

        float most = uintBitsToFloat(0xff800000u);  // minus infinity
        for (int i = lane; i < extent; i += WG_X)
            most = greater(most, x[image * x_row + first + i * inner]);
        lanes[lane] = most;
        memoryBarrierShared();
        barrier();
        for (int i = 0; i < WG_X; ++i) most = greater(most, lanes[i]);
        memoryBarrierShared();
        barrier();

        float sum = 0.0;
        for (int i = lane; i < extent; i += WG_X)
            sum += exp(x[image * x_row + first + i * inner] - most);
        lanes[lane] = sum;
        memoryBarrierShared();
        barrier();
        sum = 0.0;
        for (int i = 0; i < WG_X; ++i) sum += lanes[i];
        for (int i = lane; i < extent; i += WG_X)
            result[image * out_row + first + i * inner] =
                exp(x[image * x_row + first + i * inner] - most) / sum;
        memoryBarrierShared();
        barrier();
    }
}
