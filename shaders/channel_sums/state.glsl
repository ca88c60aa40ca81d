// What invocations know of a channel, or of four, put together. Before this file: NUMBER, float or
// vec4; LANES and RESULTS as in reduce/lanes.glsl; HAS_DY.
struct State {
    NUMBER first, second;  // sums; or a mean and the sum of squared distances from it
    float count;           // of how many numbers; with dy nobody asks
};
#define STATE State

State join(State a, State b) {
#if HAS_DY
    return State(a.first + b.first, a.second + b.second, 0.0);
#else
    float count = a.count + b.count;
    if (count == 0.0) return a;
    float share = b.count / count;
    NUMBER delta = b.first - a.first;
    return State(a.first + delta * share,
                 a.second + b.second + delta * (a.count * share) * delta, count);
#endif
}
#include "common/nan.glsl"
#define JOINS_SEVERAL
#include "reduce/lanes.glsl"

#if LANES > 1
State joined(int first, const int count, int line) {
    State whole = states[first * RESULTS + line];
#if HAS_DY
    for (int i = 1; i < count; ++i) whole = join(whole, states[(first + i) * RESULTS + line]);
#else
    // As `join` of one after the other, but with one division for all. Lanes without numbers are
    // behind those that have some, so that the first mean is of numbers if there are any.
    NUMBER base = whole.first, further = NUMBER(0.0);
    for (int i = 1; i < count; ++i) {
        State one = states[(first + i) * RESULTS + line];
        whole.count += one.count;
        further += (one.first - base) * one.count;
    }
    whole.first += further / max(whole.count, 1.0);
    whole.second = NUMBER(0.0);
    for (int i = 0; i < count; ++i) {
        State one = states[(first + i) * RESULTS + line];
        NUMBER delta = one.first - whole.first;
        whole.second += one.second + delta * one.count * delta;  // a lane without pixels adds 0
    }
#endif
    return whole;
}
#endif

const State IDENTITY = State(NUMBER(0.0), NUMBER(0.0), 0.0);

#if HAS_DY
State accumulate(State whole, NUMBER x, NUMBER dy, NUMBER mean) {
    return State(whole.first + dy, whole.second + dy * (x - mean), 0.0);
}
#else
State accumulate(State whole, NUMBER a) {
    return join(whole, State(a, NUMBER(0.0), 1.0));
}

// With four more, whose own mean is taken away first.
State accumulate(State whole, NUMBER a, NUMBER b, NUMBER c, NUMBER d) {
    NUMBER mean = ((a + b) + (c + d)) * 0.25;
    a -= mean;
    b -= mean;
    c -= mean;
    d -= mean;
    return join(whole, State(mean, (a * a + b * b) + (c * c + d * d), 4.0));
}

float finite_or_nan(float value, float mean) {
    return is_finite(mean) ? value : uintBitsToFloat(0x7fc00000u);
}
vec4 finite_or_nan(vec4 value, vec4 mean) {
    return vec4(finite_or_nan(value.x, mean.x), finite_or_nan(value.y, mean.y),
                finite_or_nan(value.z, mean.z), finite_or_nan(value.w, mean.w));
}

// The mean and the variance: no order of sums tells an infinity from NaN.
State finished(State whole, int pixels) {
    NUMBER variance = whole.second / float(pixels);
    return State(finite_or_nan(whole.first, whole.first), finite_or_nan(variance, whole.first), 0.0);
}
#endif
