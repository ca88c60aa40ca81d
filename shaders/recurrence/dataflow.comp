#version 310 es
// Many steps in a launch, by workgroups that poll for one another's states (Diamos et al. 2016,
// Persistent RNNs). A workgroup computes 4 * QUADS units of ROWS samples in all steps and keeps their
// weights in registers. The first launch stores ABSENT in the whole result; readers poll until a value
// is not ABSENT. Where a step has more such tasks than there are workgroups, each workgroup computes
// tasks_per_group of them and reloads the weights for each. This needs all workgroups to run at the
// same time, which GL does not promise: a workgroup that times out stores nothing and ends. The last
// launch, the fallback, has one workgroup, which does not poll and computes the states that are still
// ABSENT. LANES_PER_SUM neighbouring lanes sum the terms of a gate of four units. Stacked layers are a
// wavefront, as in wavefront.comp; in an upper layer half of these lanes sum over the layer below.
#ifndef LANES
#define LANES 256
#endif
#ifndef LANES_PER_SUM
#define LANES_PER_SUM 16
#endif
#ifndef QUADS
#define QUADS 1
#endif
#ifndef ROWS
#define ROWS 8
#endif
#ifndef CACHED_TILES
#define CACHED_TILES 16
#endif
#ifndef MAX_POLLS
#define MAX_POLLS 262144
#endif
#ifndef STACKED
#define STACKED 1
#endif
#ifndef SUMMED_QUADS
#define SUMMED_QUADS 64
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) coherent volatile buffer Out { uvec4 result[]; };
#include "recurrent_step/cell.glsl"
// A NaN that no arithmetic gives; QUIET is set in a state that has the same bits all the same.
#define ABSENT 0x7fa5c3e1u
#define QUIET 0x00400000u
#define UNITS (4 * ROWS * QUADS)  // of all samples
#define SLOTS (GATES * QUADS)     // sums of four units
#define PARTS (LANES / LANES_PER_SUM / SLOTS)  // of the samples, each for other lanes
#define ROWS_PER_LANE ((ROWS + PARTS - 1) / PARTS)
#define LANES_PER_UPPER_SUM (STACKED == 1 ? LANES_PER_SUM / 2 : LANES_PER_SUM)
// Quads of units that a lane sums over.
#define QUADS_PER_LANE ((SUMMED_QUADS + LANES_PER_UPPER_SUM - 1) / LANES_PER_UPPER_SUM)
#define QUADS_PER_LANE_LOWEST ((SUMMED_QUADS + LANES_PER_SUM - 1) / LANES_PER_SUM)
#if PARTS < 1 || UNITS > LANES
#error too few lanes
#endif
const int CACHED_QUADS = QUADS_PER_LANE < 8 ? QUADS_PER_LANE : 8;  // quads whose weights a lane caches
const int ROUNDS = (QUADS_PER_LANE + CACHED_QUADS - 1) / CACHED_QUADS;
#define STAGED (LANES_PER_SUM * CACHED_QUADS)
const int LOADS = (STAGED * ROWS + LANES - 1) / LANES;
// MAX_POLLS: how often a state is polled before its reader times out, far longer than a step takes.
uniform int chains, layers, most_waves;  // most_waves: of one launch
shared vec4 staged[LANES_PER_SUM * 8 * ROWS];  // the states that are summed
shared float partial_sums[SLOTS * UNITS / QUADS * (LANES_PER_SUM + 1)];  // of each lane of a sum
shared uint group_states[RESULTS * UNITS * CACHED_TILES];  // the bits of the workgroup's states
shared uint timed_out;  // 1 where a state was ABSENT at each of a lane's polls

// The weights of a lane. NVIDIA's compiler keeps an array in registers only where its indices are
// constants, and does not unroll a long loop: so the statements for each quad are written out.
vec4 cached_weights[32];
int cached_index = -1;
#define FOR_EACH_CACHED(with) with(0) with(1) with(2) with(3) with(4) with(5) with(6) with(7)

// The states that a workgroup computes in a step.
struct Task {
    int chain, step, quad, row;  // the first of QUADS and ROWS
    int place;  // offset of its states in `group_states`
    bool upper;
};

// The offset of the states of a quad of units of a chain's row before a step: in `state` before the
// first step, else in `result`.
int states_offset(int step, int chain, int row, int quad) {
    int own = (chain * batch + row) * quads + quad;
    return step == 0 ? own * STATES : ((step - 1) * chains * batch * quads + own) * RESULTS;
}

// The quad of units that a lane of a sum reads as its `index`th; it may be beyond the last one.
int summed_quad(Task task, int share, int index) {
    if (task.upper) return share % (LANES_PER_SUM / 2) + index * (LANES_PER_SUM / 2);
    return share + index * LANES_PER_SUM;
}

// Whether any lane has an `index`th quad.
bool any_lane_has(Task task, int index) {
    return index < (task.upper ? QUADS_PER_LANE : QUADS_PER_LANE_LOWEST);
}

// Load the weights of a lane for a round, if they are not cached.
void cache_weights(Task task, int round_index, int lane) {
    int share = lane % LANES_PER_SUM, slot = lane / LANES_PER_SUM % SLOTS;
    bool below = task.upper && share >= LANES_PER_SUM / 2;
    int matrix = below ? layers + task.chain - 1 : task.chain;
    int quad = min(task.quad + slot / GATES, quads - 1);
    int place = ((matrix * GATES + slot % GATES) * quads + quad) * 4 * quads;
    if (cached_index == place * ROUNDS + round_index) return;
    cached_index = place * ROUNDS + round_index;
#define CACHE(i) \
    if (i < CACHED_QUADS) { \
        int k = summed_quad(task, share, round_index * CACHED_QUADS + i); \
        bool there = k < quads; \
        cached_weights[4 * i] = there ? weight[place + k] : vec4(0.0); \
        cached_weights[4 * i + 1] = there ? weight[place + quads + k] : vec4(0.0); \
        cached_weights[4 * i + 2] = there ? weight[place + 2 * quads + k] : vec4(0.0); \
        cached_weights[4 * i + 3] = there ? weight[place + 3 * quads + k] : vec4(0.0); \
    }
    FOR_EACH_CACHED(CACHE)
}

// Add the products of four units by the weights of four rows to the sums of a lane.
void add(vec4 w0, vec4 w1, vec4 w2, vec4 w3, int place, int first, inout vec4 sums[ROWS_PER_LANE]) {
    for (int j = 0; j < ROWS_PER_LANE; ++j) {
        vec4 h = staged[min(first + j * PARTS, ROWS - 1) * STAGED + place];
        sums[j] += vec4(w0.x, w1.x, w2.x, w3.x) * h.x;
        sums[j] += vec4(w0.y, w1.y, w2.y, w3.y) * h.y;
        sums[j] += vec4(w0.z, w1.z, w2.z, w3.z) * h.z;
        sums[j] += vec4(w0.w, w1.w, w2.w, w3.w) * h.w;
    }
}

// Load the states that a round sums over to shared memory, as soon as they are stored.
void stage(Task task, int round_index, int max_polls, int lane) {
    uvec4 loaded[LOADS];
    int offsets[LOADS];
    for (int i = 0; i < LOADS; ++i) {
        int place = lane + i * LANES, share = place % LANES_PER_SUM;
        int row = task.row + place / STAGED;
        int k = summed_quad(task, share, round_index * CACHED_QUADS + place % STAGED / LANES_PER_SUM);
        bool below = task.upper && share >= LANES_PER_SUM / 2;
        int step = below ? task.step + 1 : task.step;
        bool there = place < STAGED * ROWS && row < batch && k < quads;
        offsets[i] = there ? states_offset(step, below ? task.chain - 1 : task.chain, row, k) : 0;
        offsets[i] += SUMMED;
        loaded[i] = uvec4(there && step > 0 ? ABSENT : 0u);
        if (there && step == 0) {
            uvec4 initial = floatBitsToUint(state[offsets[i]]);
            loaded[i] = initial | uvec4(equal(initial, uvec4(ABSENT))) * QUIET;
        }
    }
    bool absent = true;
    for (int tries = max_polls; tries >= 0 && absent; --tries) {
        for (int i = 0; i < LOADS; ++i)  // all loads are in flight before one is tested
            if (any(equal(loaded[i], uvec4(ABSENT)))) loaded[i] = result[offsets[i]];
        absent = false;
        for (int i = 0; i < LOADS; ++i) absent = absent || any(equal(loaded[i], uvec4(ABSENT)));
    }
    if (absent) timed_out = 1u;
    for (int i = 0; i < LOADS; ++i)
        if (lane + i * LANES < STAGED * ROWS) staged[lane + i * LANES] = uintBitsToFloat(loaded[i]);
}

// Compute the new states of a lane's unit.
void finish(Task task, int lane, float inputs[INPUTS], vec4 fixed_states[STATES]) {
    int unit_in_quad = lane % 4, row_in_tile = lane / 4 % ROWS, quad_in_tile = lane / 4 / ROWS;
    float sums[GATES];
    for (int i = 0; i < GATES; ++i) {
        int first = (((quad_in_tile * GATES + i) * ROWS + row_in_tile) * 4 + unit_in_quad)
                    * (LANES_PER_SUM + 1);
        float own = 0.0, other = 0.0;
        for (int j = 0; j < LANES_PER_SUM / 2; ++j) {
            own += partial_sums[first + j];
            other += partial_sums[first + LANES_PER_SUM / 2 + j];
        }
        sums[i] = task.upper ? own : own + other;
#if STACKED
        if (task.upper) inputs[i] = other;
#endif
    }
    float old_states[STATES];
    for (int i = RESULTS; i < STATES; ++i) old_states[i] = component(fixed_states[i], unit_in_quad);
    for (int r = 0; r < RESULTS; ++r)
        old_states[r] = uintBitsToFloat(group_states[task.place + r * UNITS + lane]);
    for (int r = 0; r < RESULTS; ++r) {
        uint bits = floatBitsToUint(new_state(r, sums, inputs, old_states));
        if (4 * (task.quad + quad_in_tile) + unit_in_quad >= units) bits = 0u;
        group_states[task.place + r * UNITS + lane] = bits == ABSENT ? bits | QUIET : bits;
    }
}

// Compute the task, whose states are in `group_states`. Returns false where a lane timed out.
bool compute_step(Task task, int max_polls, int lane) {
    int unit_in_quad = lane % 4, row = min(task.row + lane / 4 % ROWS, batch - 1);
    int quad = min(task.quad + lane / 4 / ROWS, quads - 1);
    float inputs[INPUTS];
    vec4 fixed_states[STATES];  // the states behind the RESULTS, of four units
    if (lane < UNITS) {
        int own = states_offset(0, task.chain, row, quad), direction = STACKED == 1 ? 0 : task.chain;
        for (int i = RESULTS; i < STATES; ++i) fixed_states[i] = state[own + i];
        int from = ((direction * steps + task.step) * batch + row) * INPUTS * quads + quad;
        for (int i = 0; i < INPUTS; ++i) inputs[i] = x[(from + i * quads) * 4 + unit_in_quad];
    }
    int share = lane % LANES_PER_SUM, sum = lane / LANES_PER_SUM;
    int slot = sum % SLOTS, first = sum / SLOTS;
    vec4 sums[ROWS_PER_LANE];
    for (int i = 0; i < ROWS_PER_LANE; ++i) sums[i] = vec4(0.0);
    for (int round_index = 0; round_index < ROUNDS; ++round_index) {
        cache_weights(task, round_index, lane);
        if (round_index > 0) workgroup_barrier();
        stage(task, round_index, max_polls, lane);
        workgroup_barrier();
        if (timed_out == 1u) return false;
        if (first >= PARTS || task.row + first >= batch) continue;
#define ADD(i) \
        if (i < CACHED_QUADS && any_lane_has(task, round_index * CACHED_QUADS + i)) \
            add(cached_weights[4 * i], cached_weights[4 * i + 1], cached_weights[4 * i + 2], \
                cached_weights[4 * i + 3], i * LANES_PER_SUM + share, first, sums);
        FOR_EACH_CACHED(ADD)
    }
    for (int j = 0; j < ROWS_PER_LANE; ++j) {
        int row_in_tile = first + j * PARTS;
        if (first < PARTS && row_in_tile < ROWS)
            for (int k = 0; k < 4; ++k)
                partial_sums[((slot * ROWS + row_in_tile) * 4 + k) * (LANES_PER_SUM + 1) + share] = sums[j][k];
    }
    workgroup_barrier();
    if (lane < UNITS) finish(task, lane, inputs, fixed_states);
    workgroup_barrier();
    // A lane stores four units: not all drivers store a component of a vec4 alone.
    if (lane < RESULTS * ROWS * QUADS) {
        int state_index = lane / (ROWS * QUADS), place = lane % (ROWS * QUADS), i = task.place + 4 * lane;
        row = task.row + place % ROWS;
        quad = task.quad + place / ROWS;
        if (row < batch && quad < quads)
            result[states_offset(task.step + 1, task.chain, row, quad) + state_index] =
                uvec4(group_states[i], group_states[i + 1], group_states[i + 2],
                      group_states[i + 3]);
    }
    return true;
}

// Load the states of a workgroup's units before a step to `group_states`.
void load_states(Task task, int lane) {
    if (lane >= UNITS) return;
    int row = min(task.row + lane / 4 % ROWS, batch - 1);
    int quad = min(task.quad + lane / 4 / ROWS, quads - 1);
    int at = states_offset(task.step, task.chain, row, quad);
    for (int r = 0; r < RESULTS; ++r) {
        uvec4 four = task.step == 0 ? floatBitsToUint(state[at + r]) : result[at + r];
        uint bits = component(four, lane % 4);
        if (task.step > 0 && bits == ABSENT) timed_out = 1u;
        group_states[task.place + r * UNITS + lane] = bits;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), group = int(WORKGROUP_ID.y);
    int across = (quads + QUADS - 1) / QUADS, tiles = (batch + ROWS - 1) / ROWS;
    int tasks_per_wave = across * tiles * chains, waves = STACKED == 1 ? steps + layers - 1 : steps;
    int begin = (now - 1) * most_waves, result_size = steps * chains * batch * quads * RESULTS;
    if (now == 0) {
        for (int i = group * LANES + lane; i < result_size; i += int(WORKGROUP_COUNT.y) * LANES)
            result[i] = uvec4(ABSENT);
        return;
    }
    if (lane == 0) timed_out = 0u;
    workgroup_barrier();
    bool is_fallback_launch = begin >= waves;  // the last launch
    // The workgroups of a launch in parts do not run at the same time.
    int active_groups = is_fallback_launch || IN_PARTS == 1 ? 1 : int(WORKGROUP_COUNT.y);
    int tasks_per_group = (tasks_per_wave + active_groups - 1) / active_groups;
    int first = group * tasks_per_group;
    if (first >= tasks_per_wave || (group > 0 && active_groups == 1)) return;
    if (is_fallback_launch) {  // a workgroup that timed out did not store its last step
        for (int i = result_size / steps * (steps - 1) + lane * RESULTS; i < result_size; i += LANES * RESULTS)
            if (result[i].x == ABSENT) timed_out = 1u;
        workgroup_barrier();
        bool complete = timed_out == 0u;
        workgroup_barrier();
        if (complete) return;
        if (lane == 0) timed_out = 0u;
        workgroup_barrier();
        begin = 0;
    }
    int end = is_fallback_launch ? waves : min(begin + most_waves, waves);
    for (int wave = begin; wave < end; ++wave) {
        for (int place = first; place < min(first + tasks_per_group, tasks_per_wave); ++place) {
            int chain = place / (across * tiles), step = STACKED == 1 ? wave - chain : wave;
            if (step < 0 || step >= steps) continue;
            int quad = place / tiles % across * QUADS, row = place % tiles * ROWS;
            bool states_fit = tasks_per_group <= CACHED_TILES;  // in `group_states`
            int at = states_fit ? (place - first) * RESULTS * UNITS : 0;
            Task task = Task(chain, step, quad, row, at, STACKED == 1 && chain > 0);
            if (is_fallback_launch && result[states_offset(step + 1, chain, row, quad)].x != ABSENT)
                continue;
            if (!states_fit || is_fallback_launch || step == 0 || wave == begin) {
                load_states(task, lane);
                workgroup_barrier();
                if (timed_out == 1u) return;
                workgroup_barrier();  // read by all before a lane that is ahead sets it in `stage`
            }
            if (!compute_step(task, is_fallback_launch ? 0 : MAX_POLLS, lane)) return;
            if (!states_fit || is_fallback_launch) {  // other lanes load these stores
                memoryBarrierBuffer();
                workgroup_barrier();
            }
        }
    }
}
