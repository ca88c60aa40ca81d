#version 310 es
// Softmax along one axis: a workgroup a row, its lanes share the maximum and the sum.
#ifndef WG_X
#define WG_X 32
#endif
#include "common/launch.glsl"
#include "common/nan.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, outer, extent, inner;
uniform int x_row, out_row;
shared float lanes[WG_X];

void wait() {
    memoryBarrierShared();
    barrier();
}

// The greatest of all lanes' values (by `most`) or their sum; WG_X is a power of two.
float shared_by_all(int lane, float value, bool most) {
    wait();
    lanes[lane] = value;
    wait();
    for (int apart = WG_X / 2; apart > 0; apart /= 2) {
        if (lane < apart) {
            float other = lanes[lane + apart];
            lanes[lane] = most ? greater(lanes[lane], other) : lanes[lane] + other;
        }
        wait();
    }
    return lanes[0];
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = n * outer * inner;
    for (int row = int(WORKGROUP_ID.y); row < rows; row += int(WORKGROUP_COUNT.y)) {
        int image = row / (outer * inner);
        int rest = row - image * outer * inner;
        int first = rest / inner * extent * inner + rest % inner;

        float most = uintBitsToFloat(0xff800000u);  // minus infinity
        for (int i = lane; i < extent; i += WG_X)
            most = greater(most, x[image * x_row + first + i * inner]);
        most = shared_by_all(lane, most, true);

        float sum = 0.0;
        for (int i = lane; i < extent; i += WG_X)
            sum += decayed(most - x[image * x_row + first + i * inner]);
        // Without a finite maximum all of the row is NaN, as differences of infinities are.
        sum = shared_by_all(lane, is_finite(most) ? sum : NAN, false);
        for (int i = lane; i < extent; i += WG_X)
            result[image * out_row + first + i * inner] =
                decayed(most - x[image * x_row + first + i * inner]) / sum;
    }
}
