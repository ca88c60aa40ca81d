// The first `rest` of four numbers; what lies behind them may be anything.
vec4 first_of(vec4 v, int rest) {
    return vec4(rest > 0 ? v.x : 0.0, rest > 1 ? v.y : 0.0, rest > 2 ? v.z : 0.0,
                rest > 3 ? v.w : 0.0);
}
