#version 310 es
// Many steps a launch, by workgroups that wait for what they read. The first launch marks all numbers
// of the result as absent. Behind it a workgroup takes the next task, QUADS times four units of ROWS
// samples in a step, has their weights on the way, and asks for the states before until they are
// there. Tasks are numbered by steps and taken in that order, so that each waits only for some that
// others have begun: the earliest never waits, however few workgroups run at once. Merrill and Garland
// 2016, Single-pass Parallel Prefix Scan with Decoupled Look-back. Layers one on another are a wave,
// as in waves.comp; there every other lane sums the units below.
#ifndef LANES
#define LANES 128
#endif
#ifndef QUADS
#define QUADS 1
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef STACKED
#define STACKED 1
#endif
#include "common/launch.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) coherent volatile buffer Out { uvec4 result[]; };
#include "recurrent_step/cell.glsl"
#define SUMS (ROWS * GATES)
#define SIDE (LANES / QUADS)  // the lanes of four units: at least CHUNKS
#define CHUNKS 8
// A NaN that no arithmetic gives, and what a state is that has its bits all the same.
#define ABSENT 0x7fa5c3e1u
#define ANY_NAN 0x7fc00000u
// How often is asked: seconds, after which the result is NaN, but the device is free again.
#define PATIENCE (1 << 22)
uniform int chains, layers, most_waves;  // most_waves: of one launch
shared vec4 part[SUMS * LANES];
shared float chunk[4 * CHUNKS * SUMS * QUADS];  // of the lanes of a sum, every CHUNKSth together
shared uint taken;

void wait() {
    memoryBarrierShared();
    barrier();
}

int result_fours() {
    return steps * chains * batch * quads * RESULTS;
}

// The result without a number in it. Its last word counts the tasks that are taken: the last task
// of all writes it, and nobody reads it.
void mark(int first, int stride) {
    int last = result_fours() - 1;
    for (int i = first; i <= last; i += stride)
        result[i] = uvec4(ABSENT, ABSENT, ABSENT, i == last ? 0u : ABSENT);
}

// Where four units of a chain's row have their states: before the first step in `state`, else
// in `result`.
int place_before(int step, int chain, int row, int quad) {
    int own = (chain * batch + row) * quads + quad;
    return step == 0 ? own * STATES : ((step - 1) * chains * batch * quads + own) * RESULTS;
}

void store(int step, int chain, int row, int quad, int of_four, int which, float found) {
    uint bits = 4 * quad + of_four < units ? floatBitsToUint(found) : 0u;
    int place = place_before(step + 1, chain, row, quad) + which;
    result[place][of_four] = bits == ABSENT ? ANY_NAN : bits;
}

// One step of a chain, of units from four `first_quad` and rows from `first` on.
void work(int chain, int step, int first_quad, int first, int lane) {
    bool upper = STACKED == 1 && chain > 0;
    int of_side = lane % SIDE, side = upper ? SIDE / 2 : SIDE;
    bool below = upper && of_side % 2 == 1;
    int from = upper ? of_side / 2 : of_side;
    int summed_step = below ? step + 1 : step, summed_chain = below ? chain - 1 : chain;
    int matrix = below ? layers + chain - 1 : chain;
    int begin = matrix * GATES * quads + min(first_quad + lane / SIDE, quads - 1);

    // The unit that the lane is to finish, if it is one of the first 4 * ROWS * QUADS.
    int of_four = lane % 4, of_row = lane / 4 / QUADS % ROWS, of_quad = lane / 4 % QUADS;
    int row = min(first + of_row, batch - 1), quad = min(first_quad + of_quad, quads - 1);
    float given[INPUTS], before[STATES];
    int own = place_before(0, chain, row, quad), direction = STACKED == 1 ? 0 : chain;
    for (int i = RESULTS; i < STATES; ++i) before[i] = state[own + i][of_four];
    int inputs = ((direction * steps + step) * batch + row) * INPUTS * quads + quad;
    for (int i = 0; i < INPUTS; ++i) given[i] = x[(inputs + i * quads) * 4 + of_four];
    own = place_before(step, chain, row, quad);

    vec4 sums[SUMS];
    for (int i = 0; i < SUMS; ++i) sums[i] = vec4(0.0);
    int k = from;
    do {  // at least once: a lane waits for the unit that it finishes, too
        int known = min(k, quads - 1), place = begin * 4 * quads + known;
        vec4 w[4 * GATES];
        for (int i = 0; i < 4 * GATES; ++i)
            w[i] = weight[place + (i / 4 * 4 * quads + i % 4) * quads];
        uvec4 h[ROWS];
        int patience = PATIENCE;
        bool absent = true;
        while (absent && patience > 0) {
            absent = false;
            for (int i = 0; i < ROWS; ++i) {
                int at = place_before(summed_step, summed_chain, min(first + i, batch - 1), known);
                if (summed_step == 0) h[i] = floatBitsToUint(state[at + SUMMED]);
                else h[i] = result[at + SUMMED];
                absent = absent || any(equal(h[i], uvec4(ABSENT)));
            }
            for (int i = 0; i < RESULTS; ++i) {
                uint bits;
                if (step == 0) bits = floatBitsToUint(state[own + i][of_four]);
                else bits = result[own + i][of_four];
                before[i] = uintBitsToFloat(bits);
                absent = absent || bits == ABSENT;
            }
            --patience;
        }
        if (k < quads)
            for (int i = 0; i < SUMS; ++i) {
                vec4 now_h = uintBitsToFloat(h[i / GATES]);
                int gate = i % GATES * 4;
                sums[i] += vec4(dot(w[gate], now_h), dot(w[gate + 1], now_h),
                                dot(w[gate + 2], now_h), dot(w[gate + 3], now_h));
            }
        k += side;
    } while (k < quads);
    for (int i = 0; i < SUMS; ++i) part[i * LANES + lane] = sums[i];

    wait();
    for (int i = lane; i < 4 * CHUNKS * SUMS * QUADS; i += LANES) {
        int sum = i / (4 * CHUNKS), begin_side = sum % SUMS * LANES + sum / SUMS * SIDE;
        float found = 0.0;
        for (int other = 0; other < SIDE; other += CHUNKS)
            found += part[begin_side + other + i / 4 % CHUNKS][i % 4];
        chunk[i] = found;
    }
    wait();
    if (lane >= 4 * ROWS * QUADS) return;
    float found[GATES];
    for (int i = 0; i < GATES; ++i) {
        int at = (of_quad * SUMS + of_row * GATES + i) * 4 * CHUNKS + of_four;
        float even = 0.0, odd = 0.0;
        for (int c = 0; c < 4 * CHUNKS; c += 8) {
            even += chunk[at + c];
            odd += chunk[at + c + 4];
        }
        found[i] = upper ? even : even + odd;
#if STACKED
        if (upper) given[i] = odd;
#endif
    }
    if (first + of_row >= batch || first_quad + of_quad >= quads) return;
    for (int r = 0; r < RESULTS; ++r)
        store(step, chain, row, quad, of_four, r, new_state(r, found, given, before));
}

void main() {
    int lane = int(gl_LocalInvocationID.x), groups = int(WORKGROUP_COUNT.y);
    int group = int(WORKGROUP_ID.y), begin = (now - 1) * most_waves;
    if (now == 0) {
        mark(group * LANES + lane, groups * LANES);
        return;
    }
    int across = (quads + QUADS - 1) / QUADS, tiles = (batch + ROWS - 1) / ROWS;
    int of_chain = across * tiles, waves = STACKED == 1 ? steps + layers - 1 : steps;
    int tasks = min(waves - begin, most_waves) * chains * of_chain;
    for (int turn = group; turn < tasks; turn += groups) {
        if (lane == 0) taken = atomicAdd(result[result_fours() - 1].w, 1u);
        wait();
        int task = int(taken);
        wait();
        int wave = task / (chains * of_chain), chain = task / of_chain - wave * chains;
        int step = STACKED == 1 ? wave - chain : wave, place = task % of_chain;
        if (step >= 0 && step < steps)
            work(chain, step, place / tiles * QUADS, place % tiles * ROWS, lane);
    }
}
