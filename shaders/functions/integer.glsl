// GLSL leaves division by 0, remainders of negative numbers and shifts by 32 or more undefined.

uint size_of(int x) {
    return x < 0 ? 0u - uint(x) : uint(x);
}

// a / b towards 0; 0 where b is 0.
int quotient(int a, int b) {
    if (b == 0) return 0;
    uint size = size_of(a) / size_of(b);
    return int((a < 0) != (b < 0) ? 0u - size : size);
}

// The remainder of a / b with the sign of a; 0 where b is 0.
int integer_remainder(int a, int b) {
    if (b == 0) return 0;
    uint size = size_of(a) % size_of(b);
    return int(a < 0 ? 0u - size : size);
}

// The remainder with the sign of b.
int modulo(int a, int b) {
    int remainder = integer_remainder(a, b);
    return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

int left_shift(int a, int by) {
    return by < 0 || by > 31 ? 0 : a << by;
}

int right_shift(int a, int by) {
    return a >> (by < 0 || by > 31 ? 31 : by);
}
