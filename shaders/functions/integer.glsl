// GLSL leaves open what division by 0 is, of negative numbers what is left, and wide shifts.

uint size_of(int x) {
    return x < 0 ? 0u - uint(x) : uint(x);
}

// a / b towards 0; 0 where b is 0.
int quotient(int a, int b) {
    if (b == 0) return 0;
    uint size = size_of(a) / size_of(b);
    return int((a < 0) != (b < 0) ? 0u - size : size);
}

// What a / b leaves, with the sign of a; 0 where b is 0.
int integer_rest(int a, int b) {
    if (b == 0) return 0;
    uint size = size_of(a) % size_of(b);
    return int(a < 0 ? 0u - size : size);
}

// The same with the sign of b.
int modulo(int a, int b) {
    int left = integer_rest(a, b);
    return left != 0 && (left < 0) != (b < 0) ? left + b : left;
}

int left_shift(int a, int by) {
    return by < 0 || by > 31 ? 0 : a << by;
}

int right_shift(int a, int by) {
    return a >> (by < 0 || by > 31 ? 31 : by);
}
