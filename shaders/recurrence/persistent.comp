#version 310 es
// One chain of a sample a workgroup: it makes step after step by itself, with the states of all
// units in shared memory. LANES_PER_SUM lanes side by side add up four sums.
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
#define APART (128 * LANES_PER_SUM + 1)  // components of sums: in other banks
shared float part[4 * APART];  // what each lane added up, LANES_PER_SUM of them behind one another
shared float group_states[RESULTS * 256];  // the states that change, one behind the other

// Load the states before the step `step` of a sample of a chain, its row.
void load_states(int step, int row, int lane) {
    for (int unit = lane; unit < 4 * quads; unit += LANES) {
        int quad = row * quads + unit / 4, of_four = unit % 4;
        for (int i = 0; i < RESULTS; ++i) {
            int stored = (((step - 1) * chains * batch * quads + quad) * RESULTS + i) * 4 + of_four;
            int place = i * 4 * quads + unit;
            if (step == 0) group_states[place] = component(state[quad * STATES + i], of_four);
            else group_states[place] = result[stored];
        }
    }
}

// Add up what `lane` does for each four sums that it has a share of.
void add_up(int chain, int lane) {
    int share = lane % LANES_PER_SUM;
    for (int four = lane / LANES_PER_SUM; four < GATES * quads; four += LANES / LANES_PER_SUM) {
        int begin = (chain * GATES * quads + four) * 4 * quads;
        vec4 sum = vec4(0.0);
        for (int k = share; k < quads; k += LANES_PER_SUM) {
            int at = SUMMED * 4 * quads + 4 * k, place = begin + k;
            vec4 h = vec4(group_states[at], group_states[at + 1], group_states[at + 2],
                          group_states[at + 3]);
            sum += vec4(dot(weight[place], h), dot(weight[place + quads], h),
                        dot(weight[place + 2 * quads], h), dot(weight[place + 3 * quads], h));
        }
        for (int i = 0; i < 4; ++i) part[i * APART + four * LANES_PER_SUM + share] = sum[i];
    }
}

// The states of the units of `lane` after a step. from: where the step's inputs of the row lie.
void finish(int step, int row, int from, int lane) {
    for (int unit = lane; unit < 4 * quads; unit += LANES) {
        int quad = unit / 4, of_four = unit % 4, own = row * quads + quad;
        float sums[GATES], inputs[INPUTS], before[STATES];
        for (int i = 0; i < INPUTS; ++i) inputs[i] = x[from + i * 4 * quads + unit];
        for (int i = 0; i < GATES; ++i) {
            int first = of_four * APART + (i * quads + quad) * LANES_PER_SUM;
            float sum = 0.0;
            for (int k = 0; k < LANES_PER_SUM; ++k) sum += part[first + k];
            sums[i] = sum;
        }
        for (int i = 0; i < STATES; ++i) {
            if (i < RESULTS) before[i] = group_states[i * 4 * quads + unit];
            else before[i] = component(state[own * STATES + i], of_four);
        }
        int to = (step * chains * batch * quads + own) * RESULTS * 4 + of_four;
        for (int r = 0; r < RESULTS; ++r) {
            float found = unit < units ? new_state(r, sums, inputs, before) : 0.0;
            group_states[r * 4 * quads + unit] = found;
            result[to + 4 * r] = found;
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
