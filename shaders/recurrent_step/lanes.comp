#version 310 es
// Four units of ROWS samples a workgroup: its lanes walk side by side along the units that are
// summed, so that each weight is read once for all samples, and shared memory joins their sums.
#ifndef LANES
#define LANES 64
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef TOGETHER
#define TOGETHER 4
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) buffer Out { float result[]; };
#include "recurrent_step/cell.glsl"
uniform int directions;
shared vec4 part[4 * ROWS * LANES];
// How many gates' sums a lane has at once.
#define AT_ONCE (TOGETHER < GATES ? TOGETHER : GATES)

// What `lane` adds up, of the units of `quad`, for AT_ONCE gates of ROWS samples from `first` on.
void add_up(int direction, int quad, int first, int gate, int lane) {
    vec4 sums[ROWS * AT_ONCE];
    for (int i = 0; i < ROWS * AT_ONCE; ++i) sums[i] = vec4(0.0);
    int begin = ((direction * GATES + gate) * quads + quad) * 4 * quads;
    for (int k = lane; k < quads; k += LANES) {
        vec4 h[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            int own = direction * batch + min(first + row, batch - 1);
            h[row] = state[(own * quads + k) * STATES + SUMMED];
        }
        for (int i = 0; i < AT_ONCE; ++i) {
            int at = begin + i * 4 * quads * quads + k;
            vec4 w0 = weight[at], w1 = weight[at + quads];
            vec4 w2 = weight[at + 2 * quads], w3 = weight[at + 3 * quads];
            for (int row = 0; row < ROWS; ++row)
                sums[i * ROWS + row] +=
                    vec4(dot(w0, h[row]), dot(w1, h[row]), dot(w2, h[row]), dot(w3, h[row]));
        }
    }
    for (int i = 0; i < ROWS * AT_ONCE; ++i) part[(gate * ROWS + i) * LANES + lane] = sums[i];
}

// The new states of a unit of one of the samples from `first` on.
void finish(int direction, int quad, int first, int unit) {
    int row = unit / 4, lane = unit - 4 * row;
    if (first + row >= batch) return;
    int own = (direction * batch + first + row) * quads + quad;
    int from = ((direction * steps + now) * batch + first + row) * INPUTS * quads + quad;
    float sums[GATES], inputs[INPUTS], before[STATES];
    for (int i = 0; i < GATES; ++i) sums[i] = component(part[(i * ROWS + row) * LANES], lane);
    for (int i = 0; i < INPUTS; ++i) inputs[i] = x[(from + i * quads) * 4 + lane];
    for (int i = 0; i < STATES; ++i) before[i] = component(state[own * STATES + i], lane);
    for (int r = 0; r < RESULTS; ++r) {
        float found = new_state(r, sums, inputs, before);
        result[(own * RESULTS + r) * 4 + lane] = 4 * quad + lane < units ? found : 0.0;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), tiles = (batch + ROWS - 1) / ROWS;
    int all = directions * quads * tiles;
    for (int group = int(WORKGROUP_ID.y); group < all; group += int(WORKGROUP_COUNT.y)) {
        int direction = group / (quads * tiles);
        int quad = group / tiles - direction * quads, first = group % tiles * ROWS;
        for (int gate = 0; gate < GATES; gate += AT_ONCE)
            add_up(direction, quad, first, gate, lane);
        for (int width = LANES / 2; width > 0; width /= 2) {
            workgroup_barrier();
            if (lane < width)
                for (int i = 0; i < ROWS * GATES; ++i)
                    part[i * LANES + lane] += part[i * LANES + lane + width];
        }
        workgroup_barrier();
        if (lane < 4 * ROWS) finish(direction, quad, first, lane);
        workgroup_barrier();
    }
}
