#version 310 es
// Four units of ROWS samples a workgroup: its lanes walk side by side along the units that are
// summed, so that each weight is read once for all samples, and shared memory joins their sums.
#ifndef LANES
#define LANES 64
#endif
#ifndef ROWS
#define ROWS 1
#endif
#include "common/launch.glsl"
#include "common/first_of.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#include "recurrent_step/cell.glsl"
uniform int directions;
shared vec4 part[4 * ROWS * LANES];

// The sums that `lane` has: of the units of `quad`, in `direction`, of ROWS samples from `first` on.
void add_up(int direction, int quad, int first, int lane) {
    vec4 sums[ROWS * GATES];
    for (int i = 0; i < ROWS * GATES; ++i) sums[i] = vec4(0.0);
    for (int k = lane; k < quads; k += LANES) {
        vec4 h[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            int own = direction * batch + min(first + row, batch - 1);
            h[row] = state[(own * quads + k) * STATES + SUMMED];
        }
        for (int gate = 0; gate < GATES; ++gate) {
            int at = ((direction * GATES + gate) * quads + quad) * 4 * quads + k;
            vec4 w0 = weight[at], w1 = weight[at + quads];
            vec4 w2 = weight[at + 2 * quads], w3 = weight[at + 3 * quads];
            for (int row = 0; row < ROWS; ++row)
                sums[row * GATES + gate] +=
                    vec4(dot(w0, h[row]), dot(w1, h[row]), dot(w2, h[row]), dot(w3, h[row]));
        }
    }
    for (int i = 0; i < ROWS * GATES; ++i) part[i * LANES + lane] = sums[i];
}

void finish(int direction, int quad, int row, int lane) {
    vec4 sums[GATES], given[INPUTS], before[STATES];
    int own = direction * batch + row;
    int from = ((direction * steps + now) * batch + row) * INPUTS * quads + quad;
    for (int i = 0; i < GATES; ++i) sums[i] = part[(lane * GATES + i) * LANES];
    for (int i = 0; i < INPUTS; ++i) given[i] = x[from + i * quads];
    for (int i = 0; i < STATES; ++i) before[i] = state[(own * quads + quad) * STATES + i];
    for (int r = 0; r < RESULTS; ++r)
        result[(own * quads + quad) * RESULTS + r] = there(new_state(r, sums, given, before), quad);
}

void main() {
    int lane = int(gl_LocalInvocationID.x), tiles = (batch + ROWS - 1) / ROWS;
    int all = directions * quads * tiles;
    for (int group = int(WORKGROUP_ID.y); group < all; group += int(WORKGROUP_COUNT.y)) {
        int direction = group / (quads * tiles);
        int quad = group / tiles - direction * quads, first = group % tiles * ROWS;
        add_up(direction, quad, first, lane);
        for (int width = LANES / 2; width > 0; width /= 2) {
            memoryBarrierShared();
            barrier();
            if (lane < width)
                for (int i = 0; i < ROWS * GATES; ++i)
                    part[i * LANES + lane] += part[i * LANES + lane + width];
        }
        memoryBarrierShared();
        barrier();
        if (lane < ROWS && first + lane < batch) finish(direction, quad, first + lane, lane);
        memoryBarrierShared();
        barrier();
    }
}
