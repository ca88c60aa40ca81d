#version 310 es
// One step in a launch. Stacked layers are a wavefront: layer l computes its step now - l from the
// states that the layer below stored in the launch before. A workgroup computes QUADS quads of units
// of ROWS samples. The lanes of a quad of units sum over neighbouring quads of states, and shared
// memory reduces their sums. In an upper layer half of them sum over its own units, half over those
// of the layer below.
#ifndef LANES
#define LANES 64
#endif
#ifndef QUADS
#define QUADS 1
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef TOGETHER
#define TOGETHER 4
#endif
#ifndef STACKED
#define STACKED 1
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#include "recurrent_step/cell.glsl"
uniform int chains, layers;  // chains: layers, or directions
uniform int first_chain, active_chains;  // of this launch
shared float partial_sums[16 * ROWS * LANES];  // by component of a sum
shared float new_states[4 * RESULTS * ROWS * QUADS];  // new states, four units together
// The lanes of a quad of units, and the number of partial sums that `finish` adds up.
#define LANES_PER_SUM (LANES / QUADS)
#define LAST_SUMS (LANES_PER_SUM < 8 ? LANES_PER_SUM / 2 : 4)
// The number of gates that a lane sums at a time.
#define GATES_AT_ONCE (TOGETHER < GATES ? TOGETHER : GATES)

// A state of a quad of units of a chain's row before a step: from `state` before the first step and
// where it never changes, else from `result`.
vec4 state_before(int step, int chain, int row, int quad, int index) {
    int offset = (chain * batch + row) * quads + quad;
    if (step == 0 || index >= RESULTS) return state[offset * STATES + index];
    return result[((step - 1) * chains * batch * quads + offset) * RESULTS + index];
}

// Compute the partial sums of `lane` for GATES_AT_ONCE gates from `gate` on and the samples from
// `first` on: over every `lanes_of_layer`th quad of a chain's units from `from` on, before a step.
void add_up(int begin, int chain, int step, int gate, int first, int lane, int from, int lanes_of_layer) {
    vec4 sums[ROWS * GATES_AT_ONCE];
    for (int i = 0; i < ROWS * GATES_AT_ONCE; ++i) sums[i] = vec4(0.0);
    int pitch = step > 0 ? RESULTS : STATES, chains_before = max(step - 1, 0) * chains + chain;
    for (int k = from; k < quads; k += lanes_of_layer) {
        vec4 h[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            int offset = chains_before * batch + min(first + row, batch - 1);
            int h_index = (offset * quads + k) * pitch + SUMMED;
            if (step > 0) h[row] = result[h_index];
            else h[row] = state[h_index];
        }
        for (int i = 0; i < GATES_AT_ONCE; ++i) {
            int index = begin + (gate + i) * 4 * quads * quads + k;
            vec4 w0 = weight[index], w1 = weight[index + quads];
            vec4 w2 = weight[index + 2 * quads], w3 = weight[index + 3 * quads];
            for (int row = 0; row < ROWS; ++row)
                sums[i * ROWS + row] +=
                    vec4(dot(w0, h[row]), dot(w1, h[row]), dot(w2, h[row]), dot(w3, h[row]));
        }
    }
    for (int i = 0; i < ROWS * GATES_AT_ONCE; ++i)
        for (int j = 0; j < 4; ++j) partial_sums[((gate * ROWS + i) * 4 + j) * LANES + lane] = sums[i][j];
}

// The sum of the partial sums of LAST_SUMS lanes from `first` on, for one unit of a quad.
float sum_of_lanes(int sum, int first, int unit_in_quad) {
    float value = 0.0;
    for (int i = 0; i < LAST_SUMS; ++i) value += partial_sums[(4 * sum + unit_in_quad) * LANES + first + i];
    return value;
}

// Compute the new states of a unit of a row. index: of its quad in the workgroup.
void finish(int chain, int step, int row, int quad, int index, int unit_in_quad) {
    float sums[GATES], inputs[INPUTS], old_states[STATES];
    int of_row = index / QUADS, first = (index - of_row * QUADS) * LANES_PER_SUM;
    for (int i = 0; i < GATES; ++i) sums[i] = sum_of_lanes(i * ROWS + of_row, first, unit_in_quad);
    for (int i = 0; i < STATES; ++i)
        old_states[i] = component(state_before(step, chain, row, quad, i), unit_in_quad);
#if STACKED
    if (chain > 0) {
        for (int i = 0; i < INPUTS; ++i)
            inputs[i] = sum_of_lanes(i * ROWS + of_row, first + LANES_PER_SUM / 2, unit_in_quad);
    } else
#endif
    {
        int direction = STACKED == 1 ? 0 : chain;
        int from = ((direction * steps + step) * batch + row) * INPUTS * quads + quad;
        for (int i = 0; i < INPUTS; ++i) inputs[i] = x[(from + i * quads) * 4 + unit_in_quad];
    }
    for (int r = 0; r < RESULTS; ++r) {
        float value = new_state(r, sums, inputs, old_states);
        new_states[(index * RESULTS + r) * 4 + unit_in_quad] = 4 * quad + unit_in_quad < units ? value : 0.0;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), across = (quads + QUADS - 1) / QUADS;
    int tiles = (batch + ROWS - 1) / ROWS, groups = active_chains * across * tiles;
    for (int group = int(WORKGROUP_ID.y); group < groups; group += int(WORKGROUP_COUNT.y)) {
        int of_chain = group / (across * tiles), chain = first_chain + of_chain;
        int first_quad = (group / tiles - of_chain * across) * QUADS, first = group % tiles * ROWS;
        int step = STACKED == 1 ? now - chain : now;
        bool upper = STACKED == 1 && chain > 0;
        int lanes_of_layer = upper ? LANES_PER_SUM / 2 : LANES_PER_SUM, lane_of_sum = lane % LANES_PER_SUM;
        bool below = lane_of_sum >= lanes_of_layer;
        int matrix = below ? layers + chain - 1 : chain;
        int begin = matrix * GATES * quads + min(first_quad + lane / LANES_PER_SUM, quads - 1);
        for (int gate = 0; gate < GATES; gate += GATES_AT_ONCE)
            add_up(begin * 4 * quads, below ? chain - 1 : chain, below ? step + 1 : step, gate,
                   first, lane, lane_of_sum % lanes_of_layer, lanes_of_layer);
        for (int width = lanes_of_layer / 2; width >= LAST_SUMS; width /= 2) {
            workgroup_barrier();
            if (lane_of_sum % lanes_of_layer < width)
                for (int i = 0; i < 4 * ROWS * GATES; ++i)
                    partial_sums[i * LANES + lane] += partial_sums[i * LANES + lane + width];
        }
        workgroup_barrier();
        for (int unit = lane; unit < 4 * ROWS * QUADS; unit += LANES) {
            int index = unit / 4, row = min(first + index / QUADS, batch - 1);
            finish(chain, step, row, min(first_quad + index % QUADS, quads - 1), index, unit % 4);
        }
        workgroup_barrier();
        for (int i = lane; i < ROWS * QUADS * RESULTS; i += LANES) {
            int index = i / RESULTS, row = first + index / QUADS, quad = first_quad + index % QUADS;
            int to = ((step * chains + chain) * batch + row) * quads + quad;
            if (row < batch && quad < quads)
                result[to * RESULTS + i % RESULTS] =
                    vec4(new_states[4 * i], new_states[4 * i + 1], new_states[4 * i + 2],
                         new_states[4 * i + 3]);
        }
    }
}
