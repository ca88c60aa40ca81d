#version 310 es
// LANES invocations share a result, RESULTS of which a workgroup has. Neighbours in the workgroup
// take neighbouring numbers: of one result or, with COLUMNS, of neighbouring results. Results that are
// FLOATS go through an epilogue.
#ifndef LANES
#define LANES 128
#endif
#ifndef RESULTS
#define RESULTS 1
#endif
#ifndef COLUMNS
#define COLUMNS 0
#endif
#ifndef FLOATS
#define FLOATS 1
#endif
#include "common/launch.glsl"
layout(local_size_x = LANES, local_size_y = RESULTS) in;
#define AT(operand, i) operand[i]
#ifndef WIDE
#define WIDE 0
#endif
#if COLUMNS && WIDE
#define EACH 4  // results of an invocation
#else
#define EACH 1
#endif
#include "reduce/body.glsl"
#include "reduce/lanes.glsl"
#if FLOATS
#include <epilogue>
#else
#define epilogue(value, at, channel) (value)
#endif

void main() {
    int here = int(gl_LocalInvocationIndex);
#if COLUMNS
    int lane = here / RESULTS, line = here % RESULTS;
#else
    int lane = here % LANES, line = here / LANES;
#endif
    for (int group = int(WORKGROUP_ID.y); group * RESULTS * EACH < outputs;
         group += int(WORKGROUP_COUNT.y)) {
        int o = (group * RESULTS + line) * EACH;
        VALUE own = START;
        if (o < outputs) own = of_lane(o, lane, LANES);
#if WIDE && !COLUMNS
        STATE whole = reduce_lanes(join(join(own.x, own.y), join(own.z, own.w)), lane, line);
#else
        STATE whole = reduce_lanes(own, lane, line);
#endif
        if (lane == 0 && o < outputs) {
#if EACH == 4
            RESULT four = finish(SETTLED(whole));
            for (int k = 0; k < EACH; ++k) result[o + k] = epilogue(four[k], o + k, 0);
#else
            result[o] = epilogue(finish(SETTLED(whole)), o, 0);
#endif
        }
    }
}
