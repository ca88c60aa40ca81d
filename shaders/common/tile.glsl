// A tile of BM rows by BN columns that a workgroup multiplies through shared memory, with WG_X by WG_Y
// invocations in each of SLICES, and TM by TN results an invocation. A depth is an index along k; the
// slices share the BK depths of each step. Shared memory is double-buffered: buffer_index is 0 or 1.
//
// Each run of 32 invocations covers a 4 x 8 patch of the tile, and each run of four a 2 x 2 patch, so
// that they read the same operands: NVIDIA's shared memory gives each of 32 invocations a vec4 in two
// cycles if any four neighbours read at most two different ones, else in four. The rows and columns of
// an invocation are groups of four, spread over the tile; both tiles are stored k-major. A is loaded
// four depths of a row at a time, or four rows at a depth (A_BY_ROWS); B four columns at a depth, or
// four depths of a column (B_BY_DEPTHS).
//
// The including kernel calls `locate_tile`, `multiply_steps`, `add_slices`, and stores `sum`.
#ifndef A_BY_ROWS
#define A_BY_ROWS 0
#endif
#ifndef B_BY_DEPTHS
#define B_BY_DEPTHS 0
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#define LANES (WG_X * WG_Y)
#define INVOCATIONS (LANES * SLICES)
#define BM (WG_Y * TM)
#define BN (WG_X * TN)
#define AM (BM + 4)  // row pitch of a_tile: the next depth begins in another bank
#define GM (TM / 4)  // groups of four rows of an invocation
#define GN (TN / 4)  // groups of four columns
#define A_LOADS ((BM * BK / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define B_LOADS ((BK * BN / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define STRIP 8              // rows of tiles in a strip
#define DEPTHS (BK / SLICES)  // depths of a slice in a step
#define DEPTHS_AHEAD (AHEAD == 2 && DEPTHS % 2 == 0)
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = SLICES) in;

shared float a_tile[2 * BK * AM];
#if B_BY_DEPTHS
#define BP (BN + 4)  // row pitch of b_tile
shared float b_tile[2 * BK * BP];
#else
shared vec4 b_tile[2 * BK * BN / 4];
#endif

int lane, slice;             // this invocation in the workgroup
int tile_row, tile_column;   // where the tile begins, columns in vec4
int row, column;             // the first group of rows and of columns of this invocation
vec4 a_next[A_LOADS], b_next[B_LOADS];  // loaded operands of the next step
vec4 sum[TM * GN];

// Finds the tile of this workgroup, and this invocation's rows and columns in it. Workgroups follow
// one another down the columns of strips of STRIP rows of tiles, so that operands stay in the cache.
void locate_tile() {
    int grid_width = int(WORKGROUP_COUNT.x), grid_height = int(WORKGROUP_COUNT.y);
    int linear = int(WORKGROUP_ID.y) * grid_width + int(WORKGROUP_ID.x);
    int strip = linear / (STRIP * grid_width);
    int in_strip = linear - strip * STRIP * grid_width;
    int rows = min(STRIP, grid_height - strip * STRIP);
    tile_row = (strip * STRIP + in_strip % rows) * BM;
    tile_column = in_strip / rows * (BN / 4);
    lane = int(gl_LocalInvocationIndex);
    slice = lane / LANES;
    int slice_lane = lane % LANES, patch_of_32 = slice_lane / 32;
    column = patch_of_32 % (WG_X / 8) * 8 + slice_lane % 2 + slice_lane / 4 % 4 * 2;
    row = patch_of_32 / (WG_X / 8) * 4 + slice_lane / 2 % 2 + slice_lane / 16 % 2 * 2;
    for (int i = 0; i < TM * GN; ++i) sum[i] = vec4(0.0);
}

// The depth, and the row or column, of load `item` of a step: rows and columns are counted in vec4
// where four of them are loaded at once.
ivec2 a_position(int item) {
#if A_BY_ROWS
    return ivec2(min(item / (BM / 4), BK - 1), item % (BM / 4));
#else
    return ivec2(item % (BK / 4) * 4, item / (BK / 4));
#endif
}

ivec2 b_position(int item) {
#if B_BY_DEPTHS
    return ivec2(item % (BK / 4) * 4, item / (BK / 4));
#else
    return ivec2(min(item / (BN / 4), BK - 1), item % (BN / 4));
#endif
}

// Stores the loaded operands of a step to shared memory.
void store_tiles(int buffer_index) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BM * BK / 4 % INVOCATIONS != 0 && item >= BM * BK / 4) break;
        ivec2 position = a_position(item);
#if A_BY_ROWS
        int address = (buffer_index * BK + position.x) * AM + position.y * 4;
        for (int j = 0; j < 4; ++j) a_tile[address + j] = a_next[i][j];
#else
        int address = (buffer_index * BK + position.x) * AM + position.y;
        for (int j = 0; j < 4; ++j) a_tile[address + j * AM] = a_next[i][j];
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BK * BN / 4 % INVOCATIONS != 0 && item >= BK * BN / 4) break;
#if B_BY_DEPTHS
        ivec2 position = b_position(item);
        int address = (buffer_index * BK + position.x) * BP + position.y;
        for (int j = 0; j < 4; ++j) b_tile[address + j * BP] = b_next[i][j];
#else
        b_tile[buffer_index * (BK * BN / 4) + item] = b_next[i];
#endif
    }
}

// Four rows of A at a depth; the depths of buffer 1 follow those of buffer 0.
vec4 a_quad(int depth, int quad) {
    int address = depth * AM + quad * 4;
    return vec4(a_tile[address], a_tile[address + 1], a_tile[address + 2], a_tile[address + 3]);
}

// Four columns of B at a depth; the depths of buffer 1 follow those of buffer 0.
vec4 b_quad(int depth, int quad) {
#if B_BY_DEPTHS
    int address = depth * BP + quad * 4;
    return vec4(b_tile[address], b_tile[address + 1], b_tile[address + 2], b_tile[address + 3]);
#else
    return b_tile[depth * (BN / 4) + quad];
#endif
}

// Loads this invocation's operands at a depth of A and of B, counted through both buffers. gm, gn:
// how many groups of rows and of columns are inside of the result.
void load_registers(int a_depth, int b_depth, const int gm, const int gn, out vec4 a[GM], out vec4 b[GN]) {
    for (int g = 0; g < gm; ++g) a[g] = a_quad(a_depth, g * WG_Y + row);
    for (int g = 0; g < gn; ++g) b[g] = b_quad(b_depth, g * WG_X + column);
}

void load_registers(int depth, const int gm, const int gn, out vec4 a[GM], out vec4 b[GN]) {
    load_registers(depth, depth, gm, gn, a, b);
}

void multiply_add(const int gm, const int gn, vec4 a[GM], vec4 b[GN]) {
    for (int g = 0; g < gm; ++g)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < gn; ++j) sum[(g * 4 + i) * GN + j] += a[g][i] * b[j];
}

// This slice's first depth in a buffer.
int first_depth(int buffer_index) {
    return buffer_index * BK + slice * DEPTHS;
}

// Multiplies this slice's depths `begin` to `end` - 1 of the step.
void multiply_depths(int buffer_index, const int begin, const int end, const int gm, const int gn) {
    for (int depth = begin; depth < end; ++depth) {
        vec4 a[GM];
        vec4 b[GN];
        load_registers(first_depth(buffer_index) + depth, gm, gn, a, b);
        multiply_add(gm, gn, a, b);
    }
}

#if DEPTHS_AHEAD
vec4 a_first[GM], b_first[GN];  // the first depth of the step to multiply

// Multiplies the step, and waits until the next one is stored in the other buffer. Each depth is loaded
// before the previous one is multiplied, into two pairs of registers in turn.
void multiply_depths_and_wait(int buffer_index, const int gm, const int gn) {
    vec4 a[GM], b[GN];
    int first = first_depth(buffer_index);
    for (int depth = 1; depth < DEPTHS - 1; depth += 2) {
        load_registers(first + depth, gm, gn, a, b);
        multiply_add(gm, gn, a_first, b_first);
        load_registers(first + depth + 1, gm, gn, a_first, b_first);
        multiply_add(gm, gn, a, b);
    }
    load_registers(first + DEPTHS - 1, gm, gn, a, b);
    multiply_add(gm, gn, a_first, b_first);
    workgroup_barrier();
    load_registers(first_depth(1 - buffer_index), gm, gn, a_first, b_first);
    multiply_add(gm, gn, a, b);
}
#endif

// Defined by the kernel. `load_step` loads the operands of a step; it is called for steps 0, 1, 2 and so
// on, and for one or two steps past the last, for which it must only not read past the operands.
// `store_step` stores the loaded operands to a buffer.
void load_step(int step);
void store_step(int buffer_index);

// Adds up the products of `steps` steps. The next step is stored to the other buffer:
// AHEAD 0: it is loaded before this step is multiplied, and stored after that;
// AHEAD 1: it is stored after a quarter of this step, and the step after it is loaded there;
// AHEAD 2: it is stored, and the step after it loaded, before this step is multiplied; and each depth is
// loaded into registers before the previous one is multiplied.
void multiply_steps(int steps, const int gm, const int gn) {
    load_step(0);
    store_step(0);
#if AHEAD
    load_step(1);
#endif
    workgroup_barrier();
#if DEPTHS_AHEAD
    load_registers(first_depth(0), gm, gn, a_first, b_first);
#endif
    int buffer_index = 0;
    for (int step = 0; step < steps; ++step) {
#if AHEAD == 0
        load_step(step + 1);
        multiply_depths(buffer_index, 0, DEPTHS, gm, gn);
        store_step(1 - buffer_index);
        workgroup_barrier();
#elif DEPTHS_AHEAD
        store_step(1 - buffer_index);
        load_step(step + 2);
        multiply_depths_and_wait(buffer_index, gm, gn);
#else
        multiply_depths(buffer_index, 0, DEPTHS / 4, gm, gn);
        store_step(1 - buffer_index);
        load_step(step + 2);
        multiply_depths(buffer_index, DEPTHS / 4, DEPTHS, gm, gn);
        workgroup_barrier();
#endif
        buffer_index = 1 - buffer_index;
    }
}

// Whether invocations of all slices apply the epilogue, to sums in shared memory. With a single slice
// and a short epilogue each invocation finishes its sums in registers. NVIDIA's compiler does not unroll
// a loop of long epilogues: it keeps all sums in memory then, and took up to 28 times as long.
#define FINISH_SHARED (SLICES > 1 || EPILOGUE_LONG)
#if FINISH_SHARED
// The memory of b_tile as vec4; in a round it holds PER_ROUND sums of each invocation of a slice.
#define PER_ROUND (2 * BK * BN / 4 / LANES)
#if PER_ROUND * 16 < TM * GN
#error too few rounds for the sums
#endif
vec4 shared_sum(int i) {
#if B_BY_DEPTHS
    return vec4(b_tile[4 * i], b_tile[4 * i + 1], b_tile[4 * i + 2], b_tile[4 * i + 3]);
#else
    return b_tile[i];
#endif
}

void set_shared_sum(int i, vec4 v) {
#if B_BY_DEPTHS
    for (int j = 0; j < 4; ++j) b_tile[4 * i + j] = v[j];
#else
    b_tile[i] = v;
#endif
}

// STORE stores this invocation's sums of a round, ADD adds those of another slice to them. Rounds are
// literals, since an array indexed by a loop's variable would leave the registers. Components are
// rotated: NVIDIA's compiler places a vec4 that is stored at an even register, as those of B, and then
// both operands and the sum of half of the multiplications were in one bank, which gives two a cycle.
#define STORE(round_index) \
    for (int i = 0; i < PER_ROUND && round_index * PER_ROUND + i < TM * GN; ++i) \
        set_shared_sum(i * LANES + lane % LANES, sum[round_index * PER_ROUND + i].yzwx);
#define ADD(round_index) \
    for (int i = 0; i < PER_ROUND && round_index * PER_ROUND + i < TM * GN; ++i) \
        sum[round_index * PER_ROUND + i] += shared_sum(i * LANES + lane).wxyz;
#define ADD_SLICE(round_index) \
    if (round_index * PER_ROUND < TM * GN) { \
        workgroup_barrier(); \
        if (slice == other) { STORE(round_index) } \
        workgroup_barrier(); \
        if (slice == 0) { ADD(round_index) } \
    }
#define STORE_ROUND(round_index) \
    if (first_sum == round_index * PER_ROUND && round_index * PER_ROUND < TM * GN) { STORE(round_index) }
#define EACH_ROUND(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) \
    DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#endif

// Adds the sums of all slices; only the first slice gets the totals.
void add_slices() {
#if SLICES > 1
    for (int other = 1; other < SLICES; ++other) {
        EACH_ROUND(ADD_SLICE)
    }
#endif
}

#if FINISH_SHARED
// Defined by the kernel: applies the epilogue to four sums of a row of the tile, and stores them.
void finish_quad(int row_in_tile, int quad_in_tile, vec4 sums);

// Finishes all sums, from shared memory, so that the epilogue's code is there only once.
void finish_shared_sums() {
    for (int first_sum = 0; first_sum < TM * GN; first_sum += PER_ROUND) {
        // With one slice each invocation reads only what it has stored itself.
        if (SLICES > 1 || first_sum == 0) workgroup_barrier();
        if (slice == 0) { EACH_ROUND(STORE_ROUND) }
        if (SLICES > 1) workgroup_barrier();
        for (int i = slice; i < min(PER_ROUND, TM * GN - first_sum); i += SLICES) {
            int row_in_tile = ((first_sum + i) / GN / 4 * WG_Y + row) * 4 + (first_sum + i) / GN % 4;
            int quad_in_tile = (first_sum + i) % GN * WG_X + column;
            finish_quad(row_in_tile, quad_in_tile, shared_sum(i * LANES + lane % LANES).wxyz);
        }
    }
}
#endif
