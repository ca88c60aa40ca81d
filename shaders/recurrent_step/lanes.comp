#version 310 es
// A workgroup computes four units of ROWS samples: its lanes sum over neighbouring quads of states,
// each weight is read once for all samples, and shared memory reduces the lanes' sums.
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
shared vec4 partial_sums[4 * ROWS * LANES];
// The number of gates that a lane sums at a time.
#define GATES_AT_ONCE (TOGETHER < GATES ? TOGETHER : GATES)

// Compute the partial sums of `lane` of the units of `quad`, for GATES_AT_ONCE gates of ROWS samples
// from `first` on.
void add_up(int direction, int quad, int first, int gate, int lane) {
    vec4 sums[ROWS * GATES_AT_ONCE];
    for (int i = 0; i < ROWS * GATES_AT_ONCE; ++i) sums[i] = vec4(0.0);
    int begin = ((direction * GATES + gate) * quads + quad) * 4 * quads;
    for (int k = lane; k < quads; k += LANES) {
        vec4 h[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            int offset = direction * batch + min(first + row, batch - 1);
            h[row] = state[(offset * quads + k) * STATES + SUMMED];
        }
        for (int i = 0; i < GATES_AT_ONCE; ++i) {
            int index = begin + i * 4 * quads * quads + k;
            vec4 w0 = weight[index], w1 = weight[index + quads];
            vec4 w2 = weight[index + 2 * quads], w3 = weight[index + 3 * quads];
            for (int row = 0; row < ROWS; ++row)
                sums[i * ROWS + row] +=
                    vec4(dot(w0, h[row]), dot(w1, h[row]), dot(w2, h[row]), dot(w3, h[row]));
        }
    }
    for (int i = 0; i < ROWS * GATES_AT_ONCE; ++i) partial_sums[(gate * ROWS + i) * LANES + lane] = sums[i];
}

// Compute the new states of a unit of one of the samples from `first` on.
void finish(int direction, int quad, int first, int unit) {
    int row = unit / 4, lane = unit - 4 * row;
    if (first + row >= batch) return;
    int offset = (direction * batch + first + row) * quads + quad;
    int from = ((direction * steps + now) * batch + first + row) * INPUTS * quads + quad;
    float sums[GATES], inputs[INPUTS], old_states[STATES];
    for (int i = 0; i < GATES; ++i) sums[i] = component(partial_sums[(i * ROWS + row) * LANES], lane);
    for (int i = 0; i < INPUTS; ++i) inputs[i] = x[(from + i * quads) * 4 + lane];
    for (int i = 0; i < STATES; ++i) old_states[i] = component(state[offset * STATES + i], lane);
    for (int r = 0; r < RESULTS; ++r) {
        float value = new_state(r, sums, inputs, old_states);
        result[(offset * RESULTS + r) * 4 + lane] = 4 * quad + lane < units ? value : 0.0;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), tiles = (batch + ROWS - 1) / ROWS;
    int groups = directions * quads * tiles;
    for (int group = int(WORKGROUP_ID.y); group < groups; group += int(WORKGROUP_COUNT.y)) {
        int direction = group / (quads * tiles);
        int quad = group / tiles - direction * quads, first = group % tiles * ROWS;
        for (int gate = 0; gate < GATES; gate += GATES_AT_ONCE)
            add_up(direction, quad, first, gate, lane);
        for (int width = LANES / 2; width > 0; width /= 2) {
            workgroup_barrier();
            if (lane < width)
                for (int i = 0; i < ROWS * GATES; ++i)
                    partial_sums[i * LANES + lane] += partial_sums[i * LANES + lane + width];
        }
        workgroup_barrier();
        if (lane < 4 * ROWS) finish(direction, quad, first, lane);
        workgroup_barrier();
    }
}
