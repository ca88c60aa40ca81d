#version 310 es
// A prefix sum of lines: a workgroup has RESULTS lines, each of LANES invocations. They scan LANES
// numbers at a time (Hillis and Steele 1986) and add the sum of the numbers before.
#ifndef LANES
#define LANES 32
#endif
#ifndef RESULTS
#define RESULTS 4
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = LANES, local_size_y = RESULTS) in;
#include "cum_sum/numbers.glsl"
#include "reduce/walk.glsl"
layout(std430, binding = 0) buffer X { NUMBER x[]; };
layout(std430, binding = 1) buffer Out { NUMBER result[]; };
uniform int lines, extent;

#if LANES > 1
shared NUMBER sums[LANES * RESULTS];
#endif

// The inclusive and the exclusive prefix sum of `value` over the lanes of a line, and the total.
void scan(NUMBER value, int lane, int line, out NUMBER inclusive, out NUMBER exclusive, out NUMBER total) {
#if LANES > 1
    int index = line * LANES + lane;
    sums[index] = value;
    for (int step = 1; step < LANES; step *= 2) {
        workgroup_barrier();
        NUMBER other = lane >= step ? sums[index - step] : IDENTITY;
        workgroup_barrier();
        sums[index] = BOTH(sums[index], other);
    }
    workgroup_barrier();
    inclusive = sums[index];
    exclusive = lane > 0 ? sums[index - 1] : IDENTITY;
    total = sums[line * LANES + LANES - 1];
    workgroup_barrier();
#else
    inclusive = total = value;
    exclusive = IDENTITY;
#endif
}

void main() {
    int index = int(gl_LocalInvocationIndex), lane = index % LANES, line = index / LANES;
    for (int group = int(WORKGROUP_ID.y); group * RESULTS < lines;
         group += int(WORKGROUP_COUNT.y)) {
        int o = group * RESULTS + line;
        locate_result(min(o, lines - 1));
        NUMBER sum = IDENTITY;
        for (int begin = 0; begin < extent; begin += LANES) {
            int i = min(begin + lane, extent - 1);
            bool inside = o < lines && i == begin + lane;
            locate_element(REVERSE == 1 ? extent - 1 - i : i);
            NUMBER value = IDENTITY, inclusive, exclusive, total;
            if (inside) value = x[at[0]];
            scan(value, lane, line, inclusive, exclusive, total);
            if (inside) result[at[0]] = BOTH(sum, EXCLUSIVE == 1 ? exclusive : inclusive);
            sum = BOTH(sum, total);
        }
    }
}
