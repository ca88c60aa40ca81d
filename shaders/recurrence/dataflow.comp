#version 310 es
// Many steps a launch, by workgroups that wait for what they read. A workgroup has QUADS times four
// units of ROWS samples, one step after another, and keeps their weights in registers meanwhile.
// Diamos et al. 2016, Persistent RNNs. The first launch marks all numbers of the result as absent;
// whoever needs a state asks for it until it is there. Where there are fewer workgroups than such
// parts of a step, each takes turns at several, and loads weights anew for other units. All of them
// have to run at once, of which GL promises nothing: one that waited in vain stores nothing and
// ends. In the last launch one workgroup, which never waits, makes what is absent still. SIDE lanes
// side by side add up the sums of a gate of four units. Layers one on another are a wave, as in
// wavefront.comp; of an upper layer half of them add up the units below.
#ifndef LANES
#define LANES 256
#endif
#ifndef SIDE
#define SIDE 16
#endif
#ifndef QUADS
#define QUADS 1
#endif
#ifndef ROWS
#define ROWS 8
#endif
#ifndef TILES
#define TILES 16
#endif
#ifndef PATIENCE
#define PATIENCE 262144
#endif
#ifndef STACKED
#define STACKED 1
#endif
#ifndef SUMMED_QUADS
#define SUMMED_QUADS 64
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer State { vec4 state[]; };
layout(std430, binding = 3) coherent volatile buffer Out { uvec4 result[]; };
#include "recurrent_step/cell.glsl"
// A NaN that no arithmetic gives, and a bit more where a state has its bits all the same.
#define ABSENT 0x7fa5c3e1u
#define QUIET 0x00400000u
#define UNITS (4 * ROWS * QUADS)  // of all samples
#define SLOTS (GATES * QUADS)     // sums of four units
#define PARTS (LANES / SIDE / SLOTS)  // of the samples, each of other lanes
#define EACH ((ROWS + PARTS - 1) / PARTS)
#define UPPER_SIDE (STACKED == 1 ? SIDE / 2 : SIDE)
#define ALL ((SUMMED_QUADS + UPPER_SIDE - 1) / UPPER_SIDE)  // fours of units that a lane adds up
#define ALL_LOWEST ((SUMMED_QUADS + SIDE - 1) / SIDE)
#if PARTS < 1 || UNITS > LANES
#error too few lanes
#endif
const int AT_ONCE = ALL < 8 ? ALL : 8;  // fours of units of a lane whose weights it keeps
const int TURNS = (ALL + AT_ONCE - 1) / AT_ONCE;
#define STAGED (SIDE * AT_ONCE)
const int LOADS = (STAGED * ROWS + LANES - 1) / LANES;
// PATIENCE: how often a state is asked for, far longer than any step takes.
uniform int chains, layers, most_waves;  // most_waves: of one launch
shared vec4 staged[SIDE * 8 * ROWS];  // the states that are summed
shared float part[SLOTS * UNITS / QUADS * (SIDE + 1)];  // of a sum, what its lanes add up
shared uint held[RESULTS * UNITS * TILES];  // the bits of the workgroup's states
shared uint in_vain;  // 1 where a lane waited so

// The weights of a lane. What an index that is no number in the text reaches is no register, and a
// long loop stays one by NVIDIA's compiler: so what is done with each four is written out.
vec4 kept[32];
int kept_place = -1;
#define EACH_KEPT(with) with(0) with(1) with(2) with(3) with(4) with(5) with(6) with(7)

// What a workgroup has to do.
struct Task {
    int chain, step, quad, row;  // the first of QUADS and ROWS
    int place;  // of its states in `held`
    bool upper;
};

// Where four units of a chain's row have their states: before the first step in `state`, else
// in `result`.
int place_before(int step, int chain, int row, int quad) {
    int own = (chain * batch + row) * quads + quad;
    return step == 0 ? own * STATES : ((step - 1) * chains * batch * quads + own) * RESULTS;
}

// The `index`th four of units that a lane along the sums has; there may be none.
int summed_quad(Task task, int share, int index) {
    return task.upper ? share % (SIDE / 2) + index * (SIDE / 2) : share + index * SIDE;
}

// Whether any lane has an `index`th four.
bool sums_more(Task task, int index) {
    return index < (task.upper ? ALL : ALL_LOWEST);
}

// Load the weights of a lane for a turn, unless it has them.
void keep(Task task, int turn, int lane) {
    int share = lane % SIDE, slot = lane / SIDE % SLOTS;
    bool below = task.upper && share >= SIDE / 2;
    int matrix = below ? layers + task.chain - 1 : task.chain;
    int quad = min(task.quad + slot / GATES, quads - 1);
    int place = ((matrix * GATES + slot % GATES) * quads + quad) * 4 * quads;
    if (kept_place == place * TURNS + turn) return;
    kept_place = place * TURNS + turn;
#define KEEP(i) \
    if (i < AT_ONCE) { \
        int k = summed_quad(task, share, turn * AT_ONCE + i); \
        bool there = k < quads; \
        kept[4 * i] = there ? weight[place + k] : vec4(0.0); \
        kept[4 * i + 1] = there ? weight[place + quads + k] : vec4(0.0); \
        kept[4 * i + 2] = there ? weight[place + 2 * quads + k] : vec4(0.0); \
        kept[4 * i + 3] = there ? weight[place + 3 * quads + k] : vec4(0.0); \
    }
    EACH_KEPT(KEEP)
}

// Add to the sums of a lane what four of the units give, by weights of four rows.
void add(vec4 w0, vec4 w1, vec4 w2, vec4 w3, int place, int first, inout vec4 sums[EACH]) {
    for (int j = 0; j < EACH; ++j) {
        vec4 h = staged[min(first + j * PARTS, ROWS - 1) * STAGED + place];
        sums[j] += vec4(w0.x, w1.x, w2.x, w3.x) * h.x;
        sums[j] += vec4(w0.y, w1.y, w2.y, w3.y) * h.y;
        sums[j] += vec4(w0.z, w1.z, w2.z, w3.z) * h.z;
        sums[j] += vec4(w0.w, w1.w, w2.w, w3.w) * h.w;
    }
}

// Take the states that a turn sums to shared memory, as soon as they are there.
void stage(Task task, int turn, int patience, int lane) {
    uvec4 found[LOADS];
    int places[LOADS];
    for (int i = 0; i < LOADS; ++i) {
        int place = lane + i * LANES, share = place % SIDE, row = task.row + place / STAGED;
        int k = summed_quad(task, share, turn * AT_ONCE + place % STAGED / SIDE);
        bool below = task.upper && share >= SIDE / 2;
        int step = below ? task.step + 1 : task.step;
        bool there = place < STAGED * ROWS && row < batch && k < quads;
        places[i] = there ? place_before(step, below ? task.chain - 1 : task.chain, row, k) : 0;
        places[i] += SUMMED;
        found[i] = uvec4(there && step > 0 ? ABSENT : 0u);
        if (there && step == 0) {
            uvec4 given = floatBitsToUint(state[places[i]]);
            found[i] = given | uvec4(equal(given, uvec4(ABSENT))) * QUIET;
        }
    }
    bool absent = true;
    for (int tries = patience; tries >= 0 && absent; --tries) {
        for (int i = 0; i < LOADS; ++i)  // all of them are on their way before one is looked at
            if (any(equal(found[i], uvec4(ABSENT)))) found[i] = result[places[i]];
        absent = false;
        for (int i = 0; i < LOADS; ++i) absent = absent || any(equal(found[i], uvec4(ABSENT)));
    }
    if (absent) in_vain = 1u;
    for (int i = 0; i < LOADS; ++i)
        if (lane + i * LANES < STAGED * ROWS) staged[lane + i * LANES] = uintBitsToFloat(found[i]);
}

// Find the new states of a lane's unit.
void finish(Task task, int lane, float given[INPUTS], vec4 fixed_states[STATES]) {
    int of_four = lane % 4, of_row = lane / 4 % ROWS, of_quad = lane / 4 / ROWS;
    float sums[GATES];
    for (int i = 0; i < GATES; ++i) {
        int first = (((of_quad * GATES + i) * ROWS + of_row) * 4 + of_four) * (SIDE + 1);
        float own = 0.0, other = 0.0;
        for (int j = 0; j < SIDE / 2; ++j) {
            own += part[first + j];
            other += part[first + SIDE / 2 + j];
        }
        sums[i] = task.upper ? own : own + other;
#if STACKED
        if (task.upper) given[i] = other;
#endif
    }
    float before[STATES];
    for (int i = RESULTS; i < STATES; ++i) before[i] = component(fixed_states[i], of_four);
    for (int r = 0; r < RESULTS; ++r)
        before[r] = uintBitsToFloat(held[task.place + r * UNITS + lane]);
    for (int r = 0; r < RESULTS; ++r) {
        uint bits = floatBitsToUint(new_state(r, sums, given, before));
        if (4 * (task.quad + of_quad) + of_four >= units) bits = 0u;
        held[task.place + r * UNITS + lane] = bits == ABSENT ? bits | QUIET : bits;
    }
}

// Make a step of a workgroup's units, whose states `held` has; false where it waited in vain.
bool work(Task task, int patience, int lane) {
    int of_four = lane % 4, row = min(task.row + lane / 4 % ROWS, batch - 1);
    int quad = min(task.quad + lane / 4 / ROWS, quads - 1);
    float given[INPUTS];
    vec4 fixed_states[STATES];  // those behind the RESULTS, of four units
    if (lane < UNITS) {
        int own = place_before(0, task.chain, row, quad), direction = STACKED == 1 ? 0 : task.chain;
        for (int i = RESULTS; i < STATES; ++i) fixed_states[i] = state[own + i];
        int inputs = ((direction * steps + task.step) * batch + row) * INPUTS * quads + quad;
        for (int i = 0; i < INPUTS; ++i) given[i] = x[(inputs + i * quads) * 4 + of_four];
    }
    int share = lane % SIDE, slot = lane / SIDE % SLOTS, first = lane / SIDE / SLOTS;
    vec4 sums[EACH];
    for (int i = 0; i < EACH; ++i) sums[i] = vec4(0.0);
    for (int turn = 0; turn < TURNS; ++turn) {
        keep(task, turn, lane);
        if (turn > 0) wait();
        stage(task, turn, patience, lane);
        wait();
        if (in_vain == 1u) return false;
        if (first >= PARTS || task.row + first >= batch) continue;
#define ADD(i) \
        if (i < AT_ONCE && sums_more(task, turn * AT_ONCE + i)) \
            add(kept[4 * i], kept[4 * i + 1], kept[4 * i + 2], kept[4 * i + 3], \
                i * SIDE + share, first, sums);
        EACH_KEPT(ADD)
    }
    for (int j = 0; j < EACH; ++j) {
        int of_row = first + j * PARTS;
        if (first < PARTS && of_row < ROWS)
            for (int k = 0; k < 4; ++k)
                part[((slot * ROWS + of_row) * 4 + k) * (SIDE + 1) + share] = sums[j][k];
    }
    wait();
    if (lane < UNITS) finish(task, lane, given, fixed_states);
    wait();
    // Four units a lane: parts of a vec4 are no single store in all drivers.
    if (lane < RESULTS * ROWS * QUADS) {
        int which = lane / (ROWS * QUADS), place = lane % (ROWS * QUADS), i = task.place + 4 * lane;
        row = task.row + place % ROWS;
        quad = task.quad + place / ROWS;
        if (row < batch && quad < quads)
            result[place_before(task.step + 1, task.chain, row, quad) + which] =
                uvec4(held[i], held[i + 1], held[i + 2], held[i + 3]);
    }
    return true;
}

// Take the states of a workgroup's units before a step.
void take(Task task, int lane) {
    if (lane >= UNITS) return;
    int row = min(task.row + lane / 4 % ROWS, batch - 1);
    int quad = min(task.quad + lane / 4 / ROWS, quads - 1);
    int at = place_before(task.step, task.chain, row, quad);
    for (int r = 0; r < RESULTS; ++r) {
        uvec4 four = task.step == 0 ? floatBitsToUint(state[at + r]) : result[at + r];
        uint bits = component(four, lane % 4);
        if (task.step > 0 && bits == ABSENT) in_vain = 1u;
        held[task.place + r * UNITS + lane] = bits;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), group = int(WORKGROUP_ID.y);
    int across = (quads + QUADS - 1) / QUADS, tiles = (batch + ROWS - 1) / ROWS;
    int of_wave = across * tiles * chains, waves = STACKED == 1 ? steps + layers - 1 : steps;
    int begin = (now - 1) * most_waves, all = steps * chains * batch * quads * RESULTS;
    if (now == 0) {
        for (int i = group * LANES + lane; i < all; i += int(WORKGROUP_COUNT.y) * LANES)
            result[i] = uvec4(ABSENT);
        return;
    }
    if (lane == 0) in_vain = 0u;
    wait();
    bool alone = begin >= waves;  // the last launch
    // Those of a launch in parts do not run at once.
    int most = alone || IN_PARTS == 1 ? 1 : int(WORKGROUP_COUNT.y);
    int each = (of_wave + most - 1) / most, first = group * each;
    if (first >= of_wave || (group > 0 && most == 1)) return;
    if (alone) {  // whoever ended did not make its last step
        for (int i = all / steps * (steps - 1) + lane * RESULTS; i < all; i += LANES * RESULTS)
            if (result[i].x == ABSENT) in_vain = 1u;
        wait();
        bool whole = in_vain == 0u;
        wait();
        if (whole) return;
        if (lane == 0) in_vain = 0u;
        wait();
        begin = 0;
    }
    int end = alone ? waves : min(begin + most_waves, waves);
    for (int wave = begin; wave < end; ++wave) {
        for (int place = first; place < min(first + each, of_wave); ++place) {
            int chain = place / (across * tiles), step = STACKED == 1 ? wave - chain : wave;
            if (step < 0 || step >= steps) continue;
            int quad = place / tiles % across * QUADS, row = place % tiles * ROWS;
            bool few = each <= TILES;  // whose states `held` has room for
            int at = few ? (place - first) * RESULTS * UNITS : 0;
            Task task = Task(chain, step, quad, row, at, STACKED == 1 && chain > 0);
            if (alone && result[place_before(step + 1, chain, row, quad)].x != ABSENT) continue;
            if (!few || alone || step == 0 || wave == begin) {
                take(task, lane);
                wait();
                if (in_vain == 1u) return;
                wait();  // all have read it before one that is ahead sets it in `stage`
            }
            if (!work(task, alone ? 0 : PATIENCE, lane)) return;
            if (!few || alone) {  // others of its lanes take what these stored
                memoryBarrierBuffer();
                wait();
            }
        }
    }
}
