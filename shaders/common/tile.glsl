// A tile of BM rows by BN columns that a workgroup multiplies through shared memory: WG_X by WG_Y
// invocations, times SLICES that share each step's depths (places along k), with TM by TN results
// each. Shared memory is double-buffered: buffer_index is 0 or 1.
//
// Runs of 32 invocations cover 4 x 8 patches of the tile, and runs of four 2 x 2 of it, so that they
// share what they read: NVIDIA's shared memory takes two cycles to give each of 32 invocations a vec4
// where any four neighbours read two different ones at the most, else four. An invocation's rows and
// columns are groups of four spread over the tile; both operands are kept k-major. A is loaded four
// depths of a row at a time, or four rows at a depth (A_BY_ROWS); B four columns at a depth, or four
// depths of a column (B_BY_DEPTHS).
#ifndef A_BY_ROWS
#define A_BY_ROWS 0
#endif
#ifndef B_BY_DEPTHS
#define B_BY_DEPTHS 0
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#define LANES (WG_X * WG_Y)
#define INVOCATIONS (LANES * SLICES)
#define BM (WG_Y * TM)
#define BN (WG_X * TN)
#define AM (BM + 4)  // other banks for the next depth
#define GM (TM / 4)
#define GN (TN / 4)
#define A_LOADS ((BM * BK / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define B_LOADS ((BK * BN / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define STRIP 8
#define DEPTHS (BK / SLICES)
#define DEPTHS_AHEAD (AHEAD == 2 && DEPTHS % 2 == 0)
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = SLICES) in;

shared float a_tile[2 * BK * AM];  // k-major
#if B_BY_DEPTHS
#define BP (BN + 4)
shared float b_tile[2 * BK * BP];
#else
shared vec4 b_tile[2 * BK * BN / 4];
#endif

int lane, slice, tile_row, tile_column;  // columns in vec4
int row, column;                         // this invocation's place in the tile
vec4 a_next[A_LOADS], b_next[B_LOADS];
vec4 sum[TM * GN];

// The tile of this workgroup, and this invocation's place in it. Workgroups are walked in strips of
// tile rows, so that neighbours in time share operands in the cache.
void place() {
    int wide = int(WORKGROUP_COUNT.x), high = int(WORKGROUP_COUNT.y);
    int linear = int(WORKGROUP_ID.y) * wide + int(WORKGROUP_ID.x);
    int strip = linear / (STRIP * wide);
    int rest = linear - strip * STRIP * wide;
    int rows = min(STRIP, high - strip * STRIP);
    tile_row = (strip * STRIP + rest % rows) * BM;
    tile_column = rest / rows * (BN / 4);
    lane = int(gl_LocalInvocationIndex);
    slice = lane / LANES;
    int own = lane % LANES, patch_of_32 = own / 32;
    column = patch_of_32 % (WG_X / 8) * 8 + own % 2 + own / 4 % 4 * 2;
    row = patch_of_32 / (WG_X / 8) * 4 + own / 2 % 2 + own / 16 % 2 * 2;
    for (int i = 0; i < TM * GN; ++i) sum[i] = vec4(0.0);
}

// Which of the loads of a step number `item` is: the depth, and the row or column in fours or one by
// one, as A and B are loaded.
ivec2 a_item(int item) {
#if A_BY_ROWS
    return ivec2(min(item / (BM / 4), BK - 1), item % (BM / 4));
#else
    return ivec2(item % (BK / 4) * 4, item / (BK / 4));
#endif
}

ivec2 b_item(int item) {
#if B_BY_DEPTHS
    return ivec2(item % (BK / 4) * 4, item / (BK / 4));
#else
    return ivec2(min(item / (BN / 4), BK - 1), item % (BN / 4));
#endif
}

// Puts the loaded operands of a step into shared memory.
void store(int buffer_index) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BM * BK / 4 % INVOCATIONS != 0 && item >= BM * BK / 4) break;
        ivec2 to = a_item(item);
#if A_BY_ROWS
        int at = (buffer_index * BK + to.x) * AM + to.y * 4;
        for (int j = 0; j < 4; ++j) a_tile[at + j] = a_next[i][j];
#else
        int at = (buffer_index * BK + to.x) * AM + to.y;
        for (int j = 0; j < 4; ++j) a_tile[at + j * AM] = a_next[i][j];
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BK * BN / 4 % INVOCATIONS != 0 && item >= BK * BN / 4) break;
#if B_BY_DEPTHS
        ivec2 to = b_item(item);
        int at = (buffer_index * BK + to.x) * BP + to.y;
        for (int j = 0; j < 4; ++j) b_tile[at + j * BP] = b_next[i][j];
#else
        b_tile[buffer_index * (BK * BN / 4) + item] = b_next[i];
#endif
    }
}

// Four rows of A at a depth, those of buffer 1 behind those of buffer 0.
vec4 a_at(int depth, int quad) {
    int at = depth * AM + quad * 4;
    return vec4(a_tile[at], a_tile[at + 1], a_tile[at + 2], a_tile[at + 3]);
}

// Four columns of B at a depth, those of buffer 1 behind those of buffer 0.
vec4 b_at(int depth, int quad) {
#if B_BY_DEPTHS
    int at = depth * BP + quad * 4;
    return vec4(b_tile[at], b_tile[at + 1], b_tile[at + 2], b_tile[at + 3]);
#else
    return b_tile[depth * (BN / 4) + quad];
#endif
}

// Loads what this invocation multiplies at depths, counted through both buffers; gm and gn: groups of
// rows and of columns that matter.
void take(int of_a, int of_b, const int gm, const int gn, out vec4 a[GM], out vec4 b[GN]) {
    for (int g = 0; g < gm; ++g) a[g] = a_at(of_a, g * WG_Y + row);
    for (int g = 0; g < gn; ++g) b[g] = b_at(of_b, g * WG_X + column);
}

void take(int depth, const int gm, const int gn, out vec4 a[GM], out vec4 b[GN]) {
    take(depth, depth, gm, gn, a, b);
}

void add(const int gm, const int gn, vec4 a[GM], vec4 b[GN]) {
    for (int g = 0; g < gm; ++g)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < gn; ++j) sum[(g * 4 + i) * GN + j] += a[g][i] * b[j];
}

// This slice's first depth in a buffer.
int first_depth(int buffer_index) {
    return buffer_index * BK + slice * DEPTHS;
}

// Multiplies this slice's depths of the step, from one of them up to another.
void multiply(int buffer_index, const int from, const int to, const int gm, const int gn) {
    for (int step = from; step < to; ++step) {
        vec4 a[GM];
        vec4 b[GN];
        take(first_depth(buffer_index) + step, gm, gn, a, b);
        add(gm, gn, a, b);
    }
}

#if DEPTHS_AHEAD
vec4 a_first[GM], b_first[GN];  // the first depth of the step to multiply

// Multiplies the step while the next, in the other buffer, is being stored, and waits for that: each
// depth is loaded before the one before it is multiplied, by two pairs of registers in turn.
void multiply_and_wait(int buffer_index, const int gm, const int gn) {
    vec4 a[GM], b[GN];
    int first = first_depth(buffer_index);
    for (int step = 1; step < DEPTHS - 1; step += 2) {
        take(first + step, gm, gn, a, b);
        add(gm, gn, a_first, b_first);
        take(first + step + 1, gm, gn, a_first, b_first);
        add(gm, gn, a, b);
    }
    take(first + DEPTHS - 1, gm, gn, a, b);
    add(gm, gn, a_first, b_first);
    wait();
    take(first_depth(1 - buffer_index), gm, gn, a_first, b_first);
    add(gm, gn, a, b);
}
#endif

// The kernel's own. `fetch` loads the operands of a step; it is called for 0, 1, 2 and so on, for one
// or two behind the last as well, which only must not read what is not there. `put` stores in a
// buffer what was loaded.
void fetch(int of_step);
void put(int buffer_index);

// The sums along so many steps. The next step is loaded, and then stored in the other buffer, while one
// is multiplied: loaded before it and stored behind it (AHEAD 0); stored amid it, where the one behind
// is loaded, too (1); or both before it, and each depth loaded before the last one is multiplied (2).
void walk(int steps, const int gm, const int gn) {
    fetch(0);
    put(0);
#if AHEAD
    fetch(1);
#endif
    wait();
#if DEPTHS_AHEAD
    take(first_depth(0), gm, gn, a_first, b_first);
#endif
    int buffer_index = 0;
    for (int step = 0; step < steps; ++step) {
#if AHEAD == 0
        fetch(step + 1);
        multiply(buffer_index, 0, DEPTHS, gm, gn);
        put(1 - buffer_index);
        wait();
#elif DEPTHS_AHEAD
        put(1 - buffer_index);
        fetch(step + 2);
        multiply_and_wait(buffer_index, gm, gn);
#else
        multiply(buffer_index, 0, DEPTHS / 4, gm, gn);
        put(1 - buffer_index);
        fetch(step + 2);
        multiply(buffer_index, DEPTHS / 4, DEPTHS, gm, gn);
        wait();
#endif
        buffer_index = 1 - buffer_index;
    }
}

// Whether all slices finish what they have added up. Where there is one, it does so by itself if
// that is short: a loop of long epilogues is not unrolled by NVIDIA's compiler, which keeps all sums
// in memory then and took up to 28 times as long.
#define TOGETHER (SLICES > 1 || EPILOGUE_LONG)
#if TOGETHER
// The memory of b_tile as vec4, and how many of each of a slice's invocations it holds.
#define PER_ROUND (2 * BK * BN / 4 / LANES)
#if PER_ROUND * 16 < TM * GN
#error too few rounds for the sums
#endif
vec4 space(int i) {
#if B_BY_DEPTHS
    return vec4(b_tile[4 * i], b_tile[4 * i + 1], b_tile[4 * i + 2], b_tile[4 * i + 3]);
#else
    return b_tile[i];
#endif
}

void set_space(int i, vec4 v) {
#if B_BY_DEPTHS
    for (int j = 0; j < 4; ++j) b_tile[4 * i + j] = v[j];
#else
    b_tile[i] = v;
#endif
}

// Stores PER_ROUND of this invocation's sums, and adds others to them. Rounds are numbers in the text,
// since an array indexed by a loop's variable would leave the registers. The components are rotated
// on their way: NVIDIA's compiler has a vec4 that is stored begin at an even register, as those of B
// do, and then both operands and the sum of half the multiplications were in one bank, which gives
// two a cycle.
#define STORE(round_index) \
    for (int i = 0; i < PER_ROUND && round_index * PER_ROUND + i < TM * GN; ++i) \
        set_space(i * LANES + lane % LANES, sum[round_index * PER_ROUND + i].yzwx);
#define ADD(round_index) \
    for (int i = 0; i < PER_ROUND && round_index * PER_ROUND + i < TM * GN; ++i) \
        sum[round_index * PER_ROUND + i] += space(i * LANES + lane).wxyz;
#define ADD_SLICE(round_index) \
    if (round_index * PER_ROUND < TM * GN) { \
        wait(); \
        if (slice == other) { STORE(round_index) } \
        wait(); \
        if (slice == 0) { ADD(round_index) } \
    }
#define STORE_FROM(round_index) \
    if (from == round_index * PER_ROUND && round_index * PER_ROUND < TM * GN) { STORE(round_index) }
#define EACH_ROUND(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) \
    DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#endif

// Adds up the slices' sums; only the first slice has the totals.
void add_slices() {
#if SLICES > 1
    for (int other = 1; other < SLICES; ++other) {
        EACH_ROUND(ADD_SLICE)
    }
#endif
}

#if TOGETHER
// The kernel's own: finishes four sums of a row of the tile.
void finish_at(int of_row, int of_quad, vec4 sums);

// Finishes all sums, which come from shared memory: there is one text of it for all of them.
void finish_together() {
    for (int from = 0; from < TM * GN; from += PER_ROUND) {
        if (SLICES > 1 || from == 0) wait();  // of one slice each reads what it has stored itself
        if (slice == 0) { EACH_ROUND(STORE_FROM) }
        if (SLICES > 1) wait();
        for (int i = slice; i < min(PER_ROUND, TM * GN - from); i += SLICES) {
            int of_row = ((from + i) / GN / 4 * WG_Y + row) * 4 + (from + i) / GN % 4;
            int of_quad = (from + i) % GN * WG_X + column;
            finish_at(of_row, of_quad, space(i * LANES + lane % LANES).wxyz);
        }
    }
}
#endif
