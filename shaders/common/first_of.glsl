// The first `count` of four numbers, and zeros for the others, which may be anything.
vec4 first_of(vec4 v, int count) {
    return vec4(count > 0 ? v.x : 0.0, count > 1 ? v.y : 0.0, count > 2 ? v.z : 0.0,
                count > 3 ? v.w : 0.0);
}
