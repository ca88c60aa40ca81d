#version 310 es
// Many steps a launch, by workgroups that wait for what they read. The first launch marks all
// numbers of the result as absent. Behind it a workgroup takes the next task, QUADS times four
// units of ROWS samples in a step, loads their weights, and asks for the states before until they
// are there. Tasks are numbered by steps and taken in that order, so that each waits only for some
// that others have begun: the earliest never waits, however few workgroups run at once. Merrill and
// Garland 2016, Single-pass Parallel Prefix Scan with Decoupled Look-back. GL does not promise that
// workgroups that have begun go on: one that waited in vain stores nothing and ends the taking of
// tasks. In the last launch one workgroup, which never waits, makes what is absent still. Layers one
// on another are a wave, as in wavefront.comp; of an upper layer's lanes every other one sums the units
// below.
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
#ifndef PATIENCE
#define PATIENCE 262144
#endif
#ifndef STACKED
#define STACKED 1
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
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
#define GIVEN_UP 0x80000000u  // so many tasks are taken once a workgroup waited in vain
// GROUPS: how many workgroups there are. One by itself never waits.
// PATIENCE: how often a state is asked for, far longer than any step takes.
uniform int chains, layers, most_waves;  // most_waves: of one launch
shared vec4 part[SUMS * LANES];
shared float chunk[4 * CHUNKS * SUMS * QUADS];  // of the lanes of a sum, every CHUNKSth together
shared uint stored[4 * RESULTS * ROWS * QUADS];  // the bits of the new states
shared uint taken, in_vain;  // in_vain: 1 where a lane waited so

// Of the result: its last word counts the tasks that are taken, until the last launch stores it.
int last_four() {
    return steps * chains * batch * quads * RESULTS - 1;
}

// The result without a number in it.
void mark(int first, int stride) {
    int last = last_four();
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
    int patience;
};

// Ask for one number alone until the step two before that of `share` is being made: nothing of the
// step before it is there until then.
void rest(Share share) {
    if (share.step < 2) return;
    int at = place_before(share.step - 1, share.chain, share.first_row, 0);
    for (int i = 0; i < share.patience && result[at].x == ABSENT; ++i) {}
}

// Ask until the states that `share` needs are there: of the four units `k` for all samples, which
// are summed, and those of its own unit. False where they are not.
bool await(Share share, int k, out vec4 h[ROWS], inout float before[STATES]) {
    int own = place_before(share.step, share.chain, share.row, share.quad);
    bool absent = true, given = max(share.step, share.summed_step) == 0;  // all of it in `state`
    for (int i = given ? 1 : share.patience; i > 0 && absent; --i) {
        absent = false;
        for (int j = 0; j < ROWS; ++j) {
            int row = min(share.first_row + j, batch - 1);
            int at = place_before(share.summed_step, share.summed_chain, row, k) + SUMMED;
            if (share.summed_step == 0) h[j] = state[at];
            else {
                uvec4 bits = result[at];
                absent = absent || any(equal(bits, uvec4(ABSENT)));
                h[j] = uintBitsToFloat(bits);
            }
        }
        for (int j = 0; j < RESULTS; ++j) {
            if (share.step == 0) before[j] = state[own + j][share.of_four];
            else {
                uint bits = result[own + j][share.of_four];
                absent = absent || bits == ABSENT;
                before[j] = uintBitsToFloat(bits);
            }
        }
    }
    return !absent;
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
        if (!await(share, known, h, before)) {
            in_vain = 1u;
            break;
        }
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

// Find the new states of a lane's unit, of the `of_row`th sample and the `of_quad`th four.
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
    for (int r = 0; r < RESULTS; ++r) {
        uint bits = floatBitsToUint(new_state(r, sums, given, before));
        if (4 * share.quad + share.of_four >= units) bits = 0u;
        int place = ((of_quad * ROWS + of_row) * RESULTS + r) * 4 + share.of_four;
        stored[place] = bits == ABSENT ? ANY_NAN : bits;
    }
}

// Store them, four units a lane: parts of a vec4 are no single store in all drivers.
void store(int chain, int step, int first_quad, int first_row, int lane) {
    if (lane >= RESULTS * ROWS * QUADS) return;
    int row = first_row + lane / RESULTS % ROWS, quad = first_quad + lane / RESULTS / ROWS;
    if (row >= batch || quad >= quads) return;
    int i = 4 * lane, place = place_before(step + 1, chain, row, quad) + lane % RESULTS;
    result[place] = uvec4(stored[i], stored[i + 1], stored[i + 2], stored[i + 3]);
}

// One step of a chain, of units from the four `first_quad` and samples from `first_row` on; false
// where it waited in vain.
bool work(int chain, int step, int first_quad, int first_row, int patience, int lane) {
    bool upper = STACKED == 1 && chain > 0, below = upper && lane % 2 == 1;
    int of_side = lane % SIDE, of_four = lane % 4;
    int of_quad = lane / 4 % QUADS, of_row = lane / 4 / QUADS % ROWS;
    int row = min(first_row + of_row, batch - 1), quad = min(first_quad + of_quad, quads - 1);
    int matrix = below ? layers + chain - 1 : chain;
    int place = matrix * GATES * quads + min(first_quad + lane / SIDE, quads - 1);
    Share share = Share(
        chain, step, first_row, below ? chain - 1 : chain, below ? step + 1 : step,
        place * 4 * quads, upper ? of_side / 2 : of_side, upper ? SIDE / 2 : SIDE,
        row, quad, of_four, patience);
    float given[INPUTS], before[STATES];
    int own = place_before(0, chain, row, quad), direction = STACKED == 1 ? 0 : chain;
    for (int i = RESULTS; i < STATES; ++i) before[i] = state[own + i][of_four];
    int inputs = ((direction * steps + step) * batch + row) * INPUTS * quads + quad;
    for (int i = 0; i < INPUTS; ++i) given[i] = x[(inputs + i * quads) * 4 + of_four];
    add_up(share, lane, before);
    wait();
    bool vain = in_vain == 1u;
    join(lane);
    wait();
    if (vain) return false;
    bool there = first_row + of_row < batch && first_quad + of_quad < quads;
    if (there && lane < 4 * ROWS * QUADS) finish(share, of_row, of_quad, given, before);
    wait();
    store(chain, step, first_quad, first_row, lane);
    return true;
}

// The task; false where it waited in vain. alone: no other is made meanwhile, but it may be made.
bool make(int task, bool alone, int lane) {
    int across = (quads + QUADS - 1) / QUADS, tiles = (batch + ROWS - 1) / ROWS;
    int of_chain = across * tiles, wave = task / of_chain / chains;
    int chain = task / of_chain - wave * chains, place = task % of_chain;
    int step = STACKED == 1 ? wave - chain : wave;
    if (step < 0 || step >= steps) return true;
    int quad = place / tiles * QUADS, row = place % tiles * ROWS;
    if (alone && result[place_before(step + 1, chain, row, quad)].x != ABSENT) return true;
    return work(chain, step, quad, row, alone ? 1 : PATIENCE, lane);
}

void main() {
    int lane = int(gl_LocalInvocationID.x), groups = int(WORKGROUP_COUNT.y);
    int group = int(WORKGROUP_ID.y);
    if (now == 0) {
        mark(group * LANES + lane, groups * LANES);
        return;
    }
    int of_wave = (quads + QUADS - 1) / QUADS * ((batch + ROWS - 1) / ROWS) * chains;
    int waves = STACKED == 1 ? steps + layers - 1 : steps;
    int begin = (now - 1) * most_waves, last = waves * of_wave - 1;
    int turn = group, end = min(min(waves - begin, most_waves) * of_wave, last - begin * of_wave);
    bool alone = begin >= waves;  // the last launch: what is absent, at least the last task
    if (alone) {
        if (group > 0) return;
        turn = result[last_four()].w >= GIVEN_UP ? 0 : last;
        end = last + 1;
        groups = 1;
    }
    if (lane == 0) in_vain = 0u;
    for (; turn < end; turn += groups) {
        if (lane == 0) taken = alone ? uint(turn) : atomicAdd(result[last_four()].w, 1u);
        wait();
        uint task = taken;
        wait();
        if (task >= GIVEN_UP) return;
        if (!make(int(task), alone, lane)) {
            if (lane == 0) atomicOr(result[last_four()].w, GIVEN_UP);
            return;
        }
        if (alone) memoryBarrierBuffer();
    }
}
