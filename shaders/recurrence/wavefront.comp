#version 310 es
// One step a launch. Layers one on another are a wave: layer l makes its step now - l, of what the
// layer below made in the launch before. A workgroup has QUADS times four units of ROWS samples. The
// lanes of four units walk side by side along the units that are summed, and shared memory joins
// their sums. In an upper layer half of them sum its own units, half those below.
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
uniform int chains, layers;  // chains: layers, or directions, whose states are there
uniform int first_chain, active_chains;  // of this launch
shared float part[16 * ROWS * LANES];  // a component of a sum behind the other
shared float fresh[4 * RESULTS * ROWS * QUADS];  // new states, four units together
// The lanes of four units, and how many sums of theirs `finish` adds up.
#define LANES_PER_SUM (LANES / QUADS)
#define LAST (LANES_PER_SUM < 8 ? LANES_PER_SUM / 2 : 4)
// How many gates' sums a lane has at once.
#define AT_ONCE (TOGETHER < GATES ? TOGETHER : GATES)

// One of the states of four units of a chain's row before a step: as given before the first, and
// where it never changes, else as it was stored.
vec4 state_before(int step, int chain, int row, int quad, int which) {
    int own = (chain * batch + row) * quads + quad;
    if (step == 0 || which >= RESULTS) return state[own * STATES + which];
    return result[((step - 1) * chains * batch * quads + own) * RESULTS + which];
}

// What `lane` adds up for AT_ONCE gates from `gate` on, of the samples from `first` on: every
// `side`th four of the units of a chain, as they are before a step, from the one `from` on.
void add_up(int begin, int chain, int step, int gate, int first, int lane, int from, int side) {
    vec4 sums[ROWS * AT_ONCE];
    for (int i = 0; i < ROWS * AT_ONCE; ++i) sums[i] = vec4(0.0);
    int pitch = step > 0 ? RESULTS : STATES, chains_before = max(step - 1, 0) * chains + chain;
    for (int k = from; k < quads; k += side) {
        vec4 h[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            int own = chains_before * batch + min(first + row, batch - 1);
            int at = (own * quads + k) * pitch + SUMMED;
            if (step > 0) h[row] = result[at];
            else h[row] = state[at];
        }
        for (int i = 0; i < AT_ONCE; ++i) {
            int place = begin + (gate + i) * 4 * quads * quads + k;
            vec4 w0 = weight[place], w1 = weight[place + quads];
            vec4 w2 = weight[place + 2 * quads], w3 = weight[place + 3 * quads];
            for (int row = 0; row < ROWS; ++row)
                sums[i * ROWS + row] +=
                    vec4(dot(w0, h[row]), dot(w1, h[row]), dot(w2, h[row]), dot(w3, h[row]));
        }
    }
    for (int i = 0; i < ROWS * AT_ONCE; ++i)
        for (int j = 0; j < 4; ++j) part[((gate * ROWS + i) * 4 + j) * LANES + lane] = sums[i][j];
}

// What the LAST lanes from `first` on have of a sum, for one unit of four.
float joined(int sum, int first, int of_four) {
    float found = 0.0;
    for (int i = 0; i < LAST; ++i) found += part[(4 * sum + of_four) * LANES + first + i];
    return found;
}

// The new states of a unit of four of a row, number `place` of those of the workgroup.
void finish(int chain, int step, int row, int quad, int place, int of_four) {
    float sums[GATES], inputs[INPUTS], before[STATES];
    int of_row = place / QUADS, first = (place - of_row * QUADS) * LANES_PER_SUM;
    for (int i = 0; i < GATES; ++i) sums[i] = joined(i * ROWS + of_row, first, of_four);
    for (int i = 0; i < STATES; ++i) before[i] = component(state_before(step, chain, row, quad, i), of_four);
#if STACKED
    if (chain > 0) {
        for (int i = 0; i < INPUTS; ++i)
            inputs[i] = joined(i * ROWS + of_row, first + LANES_PER_SUM / 2, of_four);
    } else
#endif
    {
        int direction = STACKED == 1 ? 0 : chain;
        int from = ((direction * steps + step) * batch + row) * INPUTS * quads + quad;
        for (int i = 0; i < INPUTS; ++i) inputs[i] = x[(from + i * quads) * 4 + of_four];
    }
    for (int r = 0; r < RESULTS; ++r) {
        float found = new_state(r, sums, inputs, before);
        fresh[(place * RESULTS + r) * 4 + of_four] = 4 * quad + of_four < units ? found : 0.0;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), across = (quads + QUADS - 1) / QUADS;
    int tiles = (batch + ROWS - 1) / ROWS, all = active_chains * across * tiles;
    for (int group = int(WORKGROUP_ID.y); group < all; group += int(WORKGROUP_COUNT.y)) {
        int of_chain = group / (across * tiles), chain = first_chain + of_chain;
        int first_quad = (group / tiles - of_chain * across) * QUADS, first = group % tiles * ROWS;
        int step = STACKED == 1 ? now - chain : now;
        bool upper = STACKED == 1 && chain > 0;
        int side = upper ? LANES_PER_SUM / 2 : LANES_PER_SUM, of_side = lane % LANES_PER_SUM;
        bool below = of_side >= side;
        int matrix = below ? layers + chain - 1 : chain;
        int begin = matrix * GATES * quads + min(first_quad + lane / LANES_PER_SUM, quads - 1);
        for (int gate = 0; gate < GATES; gate += AT_ONCE)
            add_up(begin * 4 * quads, below ? chain - 1 : chain, below ? step + 1 : step, gate,
                   first, lane, of_side % side, side);
        for (int width = side / 2; width >= LAST; width /= 2) {
            workgroup_barrier();
            if (of_side % side < width)
                for (int i = 0; i < 4 * ROWS * GATES; ++i)
                    part[i * LANES + lane] += part[i * LANES + lane + width];
        }
        workgroup_barrier();
        for (int unit = lane; unit < 4 * ROWS * QUADS; unit += LANES) {
            int place = unit / 4, row = min(first + place / QUADS, batch - 1);
            finish(chain, step, row, min(first_quad + place % QUADS, quads - 1), place, unit % 4);
        }
        workgroup_barrier();
        for (int i = lane; i < ROWS * QUADS * RESULTS; i += LANES) {
            int place = i / RESULTS, row = first + place / QUADS, quad = first_quad + place % QUADS;
            int to = ((step * chains + chain) * batch + row) * quads + quad;
            if (row < batch && quad < quads)
                result[to * RESULTS + i % RESULTS] =
                    vec4(fresh[4 * i], fresh[4 * i + 1], fresh[4 * i + 2], fresh[4 * i + 3]);
        }
    }
}
