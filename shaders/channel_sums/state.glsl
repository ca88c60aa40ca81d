// The state of a channel's sums, or of four channels', and its reduction over lanes. The includer defines NUMBER,
// float or vec4; LANES and RESULTS as in reduce/lanes.glsl; and HAS_DY.
struct State {
    NUMBER first, second;  // sums; or a mean and the sum of squared distances from it
    float count;           // of numbers; not used with dy
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
    State total = states[first * RESULTS + line];
#if HAS_DY
    for (int i = 1; i < count; ++i) total = join(total, states[(first + i) * RESULTS + line]);
#else
    // As `join` one after the other, but with a single division. Lanes without numbers come last, so that
    // the first mean is valid if any is.
    NUMBER base = total.first, distance = NUMBER(0.0);
    for (int i = 1; i < count; ++i) {
        State one = states[(first + i) * RESULTS + line];
        total.count += one.count;
        distance += (one.first - base) * one.count;
    }
    total.first += distance / max(total.count, 1.0);
    total.second = NUMBER(0.0);
    for (int i = 0; i < count; ++i) {
        State one = states[(first + i) * RESULTS + line];
        NUMBER delta = one.first - total.first;
        total.second += one.second + delta * one.count * delta;  // a lane without pixels adds 0
    }
#endif
    return total;
}
#endif

const State IDENTITY = State(NUMBER(0.0), NUMBER(0.0), 0.0);

#if HAS_DY
State accumulate(State total, NUMBER x, NUMBER dy, NUMBER mean) {
    return State(total.first + dy, total.second + dy * (x - mean), 0.0);
}
#else
State accumulate(State total, NUMBER a) {
    return join(total, State(a, NUMBER(0.0), 1.0));
}

// Adds four numbers, whose own mean is subtracted first.
State accumulate(State total, NUMBER a, NUMBER b, NUMBER c, NUMBER d) {
    NUMBER mean = ((a + b) + (c + d)) * 0.25;
    a -= mean;
    b -= mean;
    c -= mean;
    d -= mean;
    return join(total, State(mean, (a * a + b * b) + (c * c + d * d), 4.0));
}

float finite_or_nan(float value, float mean) {
    return is_finite(mean) ? value : uintBitsToFloat(0x7fc00000u);
}
vec4 finite_or_nan(vec4 value, vec4 mean) {
    return vec4(finite_or_nan(value.x, mean.x), finite_or_nan(value.y, mean.y),
                finite_or_nan(value.z, mean.z), finite_or_nan(value.w, mean.w));
}

// The mean and the variance. Both are NaN where the mean is not finite: whether it is infinite or NaN depends
// on the order of the sums.
State finished(State total, int pixels) {
    NUMBER variance = total.second / float(pixels);
    return State(finite_or_nan(total.first, total.first), finite_or_nan(variance, total.first), 0.0);
}
#endif
