#version 310 es
// One step a launch. Layers one on another are a wave: layer l makes its step now - l, of what the
// layer below made in the launch before. A workgroup has four units of ROWS samples: its lanes walk
// side by side along the units that are summed, and shared memory joins their sums. In an upper
// layer half of the lanes sum its own units, half those below.
#ifndef LANES
#define LANES 64
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
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#include "recurrent_step/cell.glsl"
uniform int chains, layers;  // chains: layers, or directions, whose states are there
uniform int first_chain, active_chains;  // of this launch
#include "recurrence/state.glsl"
shared vec4 part[4 * ROWS * LANES];
shared float fresh[16 * ROWS];  // new states, by unit and state
// How many gates' sums a lane has at once.
#define AT_ONCE (TOGETHER < GATES ? TOGETHER : GATES)

// What `lane` adds up for AT_ONCE gates from `gate` on, of the samples from `first` on: every
// `side`th four of the units of a chain, as they are before a step, from the one `from` on.
void add_up(int matrix, int chain, int step, int quad, ivec3 at, int from, int side) {
    int first = at.x, gate = at.y, lane = at.z;
    vec4 sums[ROWS * AT_ONCE];
    for (int i = 0; i < ROWS * AT_ONCE; ++i) sums[i] = vec4(0.0);
    int begin = ((matrix * GATES + gate) * quads + quad) * 4 * quads;
    for (int k = from; k < quads; k += side) {
        vec4 h[ROWS];
        for (int row = 0; row < ROWS; ++row)
            h[row] = state_before(step, chain, min(first + row, batch - 1), k, SUMMED);
        for (int i = 0; i < AT_ONCE; ++i) {
            int place = begin + i * 4 * quads * quads + k;
            vec4 w0 = weight[place], w1 = weight[place + quads];
            vec4 w2 = weight[place + 2 * quads], w3 = weight[place + 3 * quads];
            for (int row = 0; row < ROWS; ++row)
                sums[i * ROWS + row] +=
                    vec4(dot(w0, h[row]), dot(w1, h[row]), dot(w2, h[row]), dot(w3, h[row]));
        }
    }
    for (int i = 0; i < ROWS * AT_ONCE; ++i) part[(gate * ROWS + i) * LANES + lane] = sums[i];
}

void wait() {
    memoryBarrierShared();
    barrier();
}

// The new states of a unit of one of the samples from `first` on.
void finish(int chain, int step, int quad, int first, int unit) {
    int row = unit / 4, lane = unit - 4 * row, sample_row = min(first + row, batch - 1);
    float sums[GATES], given[INPUTS], before[STATES];
    for (int i = 0; i < GATES; ++i) sums[i] = part[(i * ROWS + row) * LANES][lane];
    for (int i = 0; i < STATES; ++i)
        before[i] = state_before(step, chain, sample_row, quad, i)[lane];
#if STACKED
    if (chain > 0) {
        for (int i = 0; i < INPUTS; ++i) given[i] = part[(i * ROWS + row) * LANES + LANES / 2][lane];
    } else
#endif
    {
        int direction = STACKED == 1 ? 0 : chain;
        int from = ((direction * steps + step) * batch + sample_row) * INPUTS * quads + quad;
        for (int i = 0; i < INPUTS; ++i) given[i] = x[(from + i * quads) * 4 + lane];
    }
    for (int r = 0; r < RESULTS; ++r) {
        float found = new_state(r, sums, given, before);
        fresh[(row * RESULTS + r) * 4 + lane] = 4 * quad + lane < units ? found : 0.0;
    }
}

// What `finish` found, of one of the samples and one of the states.
void store(int chain, int step, int quad, int first, int which) {
    int row = which / RESULTS, r = which - row * RESULTS;
    if (first + row >= batch) return;
    int own = ((step * chains + chain) * batch + first + row) * quads + quad;
    vec4 found = vec4(fresh[4 * which], fresh[4 * which + 1], fresh[4 * which + 2],
                      fresh[4 * which + 3]);
    result[own * RESULTS + r] = found;
}

void main() {
    int lane = int(gl_LocalInvocationID.x), tiles = (batch + ROWS - 1) / ROWS;
    int all = active_chains * quads * tiles;
    for (int group = int(WORKGROUP_ID.y); group < all; group += int(WORKGROUP_COUNT.y)) {
        int of_chain = group / (quads * tiles), chain = first_chain + of_chain;
        int quad = group / tiles - of_chain * quads, first = group % tiles * ROWS;
        int step = STACKED == 1 ? now - chain : now;
        bool upper = STACKED == 1 && chain > 0, below = upper && lane >= LANES / 2;
        int side = upper ? LANES / 2 : LANES, matrix = below ? layers + chain - 1 : chain;
        for (int gate = 0; gate < GATES; gate += AT_ONCE)
            add_up(matrix, below ? chain - 1 : chain, below ? step + 1 : step, quad,
                   ivec3(first, gate, lane), lane % side, side);
        for (int width = side / 2; width > 0; width /= 2) {
            wait();
            if (lane % side < width)
                for (int i = 0; i < ROWS * GATES; ++i)
                    part[i * LANES + lane] += part[i * LANES + lane + width];
        }
        wait();
        if (lane < 4 * ROWS) finish(chain, step, quad, first, lane);
        wait();
        if (lane < ROWS * RESULTS) store(chain, step, quad, first, lane);
    }
}
