#version 310 es
// LANES invocations share a line, RESULTS of which a workgroup has: they add LANES numbers up at a
// time, each those of more and more lanes before it (Hillis and Steele 1986), to what is before.
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

// The sums of `own` of all lanes up to this one, of those before it, and of all.
void add_up(NUMBER own, int lane, int line, out NUMBER upto, out NUMBER before, out NUMBER all) {
#if LANES > 1
    int here = line * LANES + lane;
    sums[here] = own;
    for (int step = 1; step < LANES; step *= 2) {
        workgroup_barrier();
        NUMBER other = lane >= step ? sums[here - step] : IDENTITY;
        workgroup_barrier();
        sums[here] = BOTH(sums[here], other);
    }
    workgroup_barrier();
    upto = sums[here];
    before = lane > 0 ? sums[here - 1] : IDENTITY;
    all = sums[line * LANES + LANES - 1];
    workgroup_barrier();
#else
    upto = all = own;
    before = IDENTITY;
#endif
}

void main() {
    int here = int(gl_LocalInvocationIndex), lane = here % LANES, line = here / LANES;
    for (int group = int(WORKGROUP_ID.y); group * RESULTS < lines;
         group += int(WORKGROUP_COUNT.y)) {
        int o = group * RESULTS + line;
        locate_result(min(o, lines - 1));
        NUMBER sum = IDENTITY;
        for (int begin = 0; begin < extent; begin += LANES) {
            int i = min(begin + lane, extent - 1);
            bool there = o < lines && i == begin + lane;
            locate_element(REVERSE == 1 ? extent - 1 - i : i);
            NUMBER own = IDENTITY, upto, before, all;
            if (there) own = x[at[0]];
            add_up(own, lane, line, upto, before, all);
            if (there) result[at[0]] = BOTH(sum, EXCLUSIVE == 1 ? before : upto);
            sum = BOTH(sum, all);
        }
    }
}
