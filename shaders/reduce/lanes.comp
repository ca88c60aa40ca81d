#version 310 es
// LANES invocations share a result, and a workgroup computes RESULTS results. Neighbours in the workgroup
// read neighbouring numbers: of one result or, with COLUMNS, of neighbouring results. FLOATS results have an
// epilogue.
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
    int invocation = int(gl_LocalInvocationIndex);
#if COLUMNS
    int lane = invocation / RESULTS, line = invocation % RESULTS;
#else
    int lane = invocation % LANES, line = invocation / LANES;
#endif
    for (int group = int(WORKGROUP_ID.y); group * RESULTS * EACH < outputs;
         group += int(WORKGROUP_COUNT.y)) {
        int o = (group * RESULTS + line) * EACH;
        VALUE lane_value = START;
        if (o < outputs) lane_value = reduce_lane(o, lane, LANES);
#if WIDE && !COLUMNS
        STATE total = reduce_lanes(
            join(join(lane_value.x, lane_value.y), join(lane_value.z, lane_value.w)), lane, line);
#else
        STATE total = reduce_lanes(lane_value, lane, line);
#endif
        if (lane == 0 && o < outputs) {
#if EACH == 4
            RESULT four = finish(SETTLED(total));
            for (int k = 0; k < EACH; ++k) result[o + k] = epilogue(four[k], o + k, 0);
#else
            result[o] = epilogue(finish(SETTLED(total)), o, 0);
#endif
        }
    }
}
