#version 310 es
// A workgroup computes all steps of one chain of a sample, with the states of all units in shared
// memory. LANES_PER_SUM neighbouring lanes compute four sums.
#ifndef LANES
#define LANES 128
#endif
#ifndef LANES_PER_SUM
#define LANES_PER_SUM 4
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) buffer Out { float result[]; };
#include "recurrent_step/cell.glsl"
uniform int chains, most_steps;  // most_steps: of one launch
#define SUM_PITCH (128 * LANES_PER_SUM + 1)  // between the components of a sum: in other banks
shared float partial_sums[4 * SUM_PITCH];  // the partial sums of LANES_PER_SUM lanes are contiguous
shared float group_states[RESULTS * 256];  // the states that change, one after the other

// Load the states before a step. row: the sample of a chain.
void load_states(int step, int row, int lane) {
    for (int unit = lane; unit < 4 * quads; unit += LANES) {
        int quad = row * quads + unit / 4, unit_in_quad = unit % 4;
        for (int i = 0; i < RESULTS; ++i) {
            int offset = (((step - 1) * chains * batch * quads + quad) * RESULTS + i) * 4 + unit_in_quad;
            int index = i * 4 * quads + unit;
            if (step == 0) group_states[index] = component(state[quad * STATES + i], unit_in_quad);
            else group_states[index] = result[offset];
        }
    }
}

// Compute the partial sums of `lane`.
void add_up(int chain, int lane) {
    int share = lane % LANES_PER_SUM;
    for (int output_quad = lane / LANES_PER_SUM; output_quad < GATES * quads;
         output_quad += LANES / LANES_PER_SUM) {
        int begin = (chain * GATES * quads + output_quad) * 4 * quads;
        vec4 sum = vec4(0.0);
        for (int k = share; k < quads; k += LANES_PER_SUM) {
            int h_index = SUMMED * 4 * quads + 4 * k, index = begin + k;
            vec4 h = vec4(group_states[h_index], group_states[h_index + 1], group_states[h_index + 2],
                          group_states[h_index + 3]);
            sum += vec4(dot(weight[index], h), dot(weight[index + quads], h),
                        dot(weight[index + 2 * quads], h), dot(weight[index + 3 * quads], h));
        }
        for (int i = 0; i < 4; ++i) partial_sums[i * SUM_PITCH + output_quad * LANES_PER_SUM + share] = sum[i];
    }
}

// Compute the states of the units of `lane` after a step. from: offset of the row's inputs.
void finish(int step, int row, int from, int lane) {
    for (int unit = lane; unit < 4 * quads; unit += LANES) {
        int quad = unit / 4, unit_in_quad = unit % 4, own = row * quads + quad;
        float sums[GATES], inputs[INPUTS], old_states[STATES];
        for (int i = 0; i < INPUTS; ++i) inputs[i] = x[from + i * 4 * quads + unit];
        for (int i = 0; i < GATES; ++i) {
            int first = unit_in_quad * SUM_PITCH + (i * quads + quad) * LANES_PER_SUM;
            float sum = 0.0;
            for (int k = 0; k < LANES_PER_SUM; ++k) sum += partial_sums[first + k];
            sums[i] = sum;
        }
        for (int i = 0; i < STATES; ++i) {
            if (i < RESULTS) old_states[i] = group_states[i * 4 * quads + unit];
            else old_states[i] = component(state[own * STATES + i], unit_in_quad);
        }
        int to = (step * chains * batch * quads + own) * RESULTS * 4 + unit_in_quad;
        for (int r = 0; r < RESULTS; ++r) {
            float value = unit < units ? new_state(r, sums, inputs, old_states) : 0.0;
            group_states[r * 4 * quads + unit] = value;
            result[to + 4 * r] = value;
        }
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    for (int row = int(WORKGROUP_ID.y); row < chains * batch; row += int(WORKGROUP_COUNT.y)) {
        int chain = row / batch, begin = now * most_steps;
        load_states(begin, row, lane);
        workgroup_barrier();
        for (int step = begin; step < min(begin + most_steps, steps); ++step) {
            add_up(chain, lane);
            workgroup_barrier();
            int of_batch = row - chain * batch;
            finish(step, row, ((chain * steps + step) * batch + of_batch) * INPUTS * 4 * quads, lane);
            workgroup_barrier();
        }
    }
}
