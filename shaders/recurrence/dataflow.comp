#version 310 es
// Many steps a launch, by workgroups that wait for what they read. The first launch marks all
// numbers of the result as absent. Behind it a workgroup takes the next task, QUADS times four
// units of ROWS samples in a step, loads their weights, and asks for the states before until they
// are there. Tasks are numbered by steps and taken in that order, so that each waits only for some
// that others have begun: the earliest never waits, however few workgroups run at once. Merrill and
// Garland 2016, Single-pass Parallel Prefix Scan with Decoupled Look-back. Layers one on another
// are a wave, as in waves.comp; of an upper layer's lanes every other one sums the units below.
#ifndef LANES
#define LANES 128
#endif
#ifndef QUADS
#define QUADS 1
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef GROUPS
#define GROUPS 1
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
// GROUPS: how many workgroups there are. One by itself never waits.
// How often is asked: far longer than any step takes. Then the result is NaN, but the device is free.
#define PATIENCE (1 << 18)
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

// What a lane of `work` has to do.
struct Share {
    int chain, step;
    int first_row;  // of the samples that are summed
    int summed_chain, summed_step;  // whose states are summed: the layer below has made that step
    int place, from, side;  // of its weights; the fours of units from `from` on, every `side`th
    int row, quad, of_four;  // the unit that it finishes, if it is one of so many first lanes
};

void store(Share share, int which, float found) {
    uint bits = 4 * share.quad + share.of_four < units ? floatBitsToUint(found) : 0u;
    int place = place_before(share.step + 1, share.chain, share.row, share.quad);
    result[place + which][share.of_four] = bits == ABSENT ? ANY_NAN : bits;
}

// Ask for one number alone until the step two before that of `share` is being made: nothing of the
// step before it is there until then.
void rest(Share share) {
    if (share.step < 2) return;
    int at = place_before(share.step - 1, share.chain, share.first_row, 0);
    for (int i = 0; i < PATIENCE && result[at].x == ABSENT; ++i) {}
}

// Ask until the states that `share` needs are there: of the four units `k` for all samples, which
// are summed, and those of its own unit.
void await(Share share, int k, out vec4 h[ROWS], inout float before[STATES]) {
    int own = place_before(share.step, share.chain, share.row, share.quad);
    int patience = PATIENCE;
    bool absent = true;
    while (absent && patience > 0) {
        absent = false;
        for (int i = 0; i < ROWS; ++i) {
            int row = min(share.first_row + i, batch - 1);
            int at = place_before(share.summed_step, share.summed_chain, row, k) + SUMMED;
            uvec4 bits;
            if (share.summed_step == 0) bits = floatBitsToUint(state[at]);
            else bits = result[at];
            h[i] = uintBitsToFloat(bits);
            absent = absent || any(equal(bits, uvec4(ABSENT)));
        }
        for (int i = 0; i < RESULTS; ++i) {
            uint bits;
            if (share.step == 0) bits = floatBitsToUint(state[own + i][share.of_four]);
            else bits = result[own + i][share.of_four];
            before[i] = uintBitsToFloat(bits);
            absent = absent || bits == ABSENT;
        }
        --patience;
    }
}

// What a lane adds up for all gates goes to `part`, the states of its unit to `before`.
void add_up(Share share, int lane, inout float before[STATES]) {
    vec4 sums[SUMS];
    for (int i = 0; i < SUMS; ++i) sums[i] = vec4(0.0);
    int k = share.from;
    do {  // once at least: a lane that has nothing to add up waits for its unit all the same
        int known = min(k, quads - 1);
        vec4 w[4 * GATES], h[ROWS];
        for (int i = 0; i < 4 * GATES; ++i)
            w[i] = weight[share.place + (i / 4 * 4 * quads + i % 4) * quads + known];
        if (k == share.from) rest(share);
        await(share, known, h, before);
        if (k < quads)
            for (int i = 0; i < SUMS; ++i) {
                int row = i / GATES, gate = i % GATES * 4;
                sums[i] += vec4(dot(w[gate], h[row]), dot(w[gate + 1], h[row]),
                                dot(w[gate + 2], h[row]), dot(w[gate + 3], h[row]));
            }
        k += share.side;
    } while (k < quads);
    for (int i = 0; i < SUMS; ++i) part[i * LANES + lane] = sums[i];
}

// Add up what the lanes have of each sum, every CHUNKSth together.
void join(int lane) {
    for (int i = lane; i < 4 * CHUNKS * SUMS * QUADS; i += LANES) {
        int sum = i / (4 * CHUNKS), first = sum % SUMS * LANES + sum / SUMS * SIDE + i / 4 % CHUNKS;
        float found = 0.0;
        for (int other = 0; other < SIDE; other += CHUNKS) found += part[first + other][i % 4];
        chunk[i] = found;
    }
}

// The new states of a lane's unit, of the `of_row`th sample and the `of_quad`th four.
void finish(Share share, int of_row, int of_quad, float given[INPUTS], float before[STATES]) {
    float sums[GATES];
    bool upper = STACKED == 1 && share.chain > 0;
    for (int i = 0; i < GATES; ++i) {
        int first = (of_quad * SUMS + of_row * GATES + i) * 4 * CHUNKS + share.of_four;
        float even = 0.0, odd = 0.0;
        for (int c = 0; c < 4 * CHUNKS; c += 8) {
            even += chunk[first + c];
            odd += chunk[first + c + 4];
        }
        sums[i] = upper ? even : even + odd;
#if STACKED
        if (upper) given[i] = odd;
#endif
    }
    for (int r = 0; r < RESULTS; ++r) store(share, r, new_state(r, sums, given, before));
}

// One step of a chain, of units from the four `first_quad` and samples from `first_row` on.
void work(int chain, int step, int first_quad, int first_row, int lane) {
    bool upper = STACKED == 1 && chain > 0, below = upper && lane % 2 == 1;
    int of_side = lane % SIDE, of_four = lane % 4;
    int of_quad = lane / 4 % QUADS, of_row = lane / 4 / QUADS % ROWS;
    int row = min(first_row + of_row, batch - 1), quad = min(first_quad + of_quad, quads - 1);
    int matrix = below ? layers + chain - 1 : chain;
    int place = matrix * GATES * quads + min(first_quad + lane / SIDE, quads - 1);
    Share share = Share(
        chain, step, first_row, below ? chain - 1 : chain, below ? step + 1 : step,
        place * 4 * quads, upper ? of_side / 2 : of_side, upper ? SIDE / 2 : SIDE,
        row, quad, of_four);
    float given[INPUTS], before[STATES];
    int own = place_before(0, chain, row, quad), direction = STACKED == 1 ? 0 : chain;
    for (int i = RESULTS; i < STATES; ++i) before[i] = state[own + i][of_four];
    int inputs = ((direction * steps + step) * batch + row) * INPUTS * quads + quad;
    for (int i = 0; i < INPUTS; ++i) given[i] = x[(inputs + i * quads) * 4 + of_four];
    add_up(share, lane, before);
    wait();
    join(lane);
    wait();
    bool there = first_row + of_row < batch && first_quad + of_quad < quads;
    if (there && lane < 4 * ROWS * QUADS) finish(share, of_row, of_quad, given, before);
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
