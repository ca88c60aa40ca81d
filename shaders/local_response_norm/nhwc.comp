#version 310 es
// Local response normalisation, channels last: one pixel of four channels an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "local_response_norm/power.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int n, c, inner;

// Quads in which the neighbours of four channels lie, before these four and behind them.
#define QUADS_BEFORE ((BEFORE + 3) / 4)
#define QUADS_BEHIND ((BEHIND + 3) / 4)

void normalise(int i, int quad) {
    int quads = (c + 3) / 4;
    float squares[4 * (QUADS_BEFORE + 1 + QUADS_BEHIND)];
    for (int q = 0; q <= QUADS_BEFORE + QUADS_BEHIND; ++q) {
        int there = quad + q - QUADS_BEFORE;
        vec4 neighbours = there >= 0 && there < quads ? x[i + q - QUADS_BEFORE] : vec4(0.0);
        // Lanes past the last channel may hold anything.
        for (int lane = 0; lane < 4; ++lane) {
            float neighbour = there * 4 + lane < c ? neighbours[lane] : 0.0;
            squares[4 * q + lane] = neighbour * neighbour;
        }
    }
    vec4 own = x[i];
    for (int lane = 0; lane < 4; ++lane) {
        float sum = 0.0;
        for (int t = 0; t < SIZE; ++t) sum += squares[4 * QUADS_BEFORE - BEFORE + lane + t];
        own[lane] = normed(own[lane], sum);
    }
    result[i] = own;
}

void main() {
    int quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * inner * quads; i += stride)
        normalise(i, i % quads);
}
