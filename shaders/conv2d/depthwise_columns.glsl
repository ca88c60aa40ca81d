// Depthwise convolution, channels last: an invocation slides windows down PX columns of ROWS rows of one
// channel. All weights of the channel, and the sums of all rows of the result that an input row contributes
// to, stay in registers, so that each number is loaded once and multiplied by all taps. NVIDIA's compiler does
// not unroll loops of so much code, and keeps arrays that such loops index in memory: so macros write out the
// work for each column, tap and pixel.
//
// The includer defines `in_at(i)`, a number of the input; `weight_of(tap, channel)`; the buffer `result`; the
// uniforms n and c; and as macros the sizes IN_H, IN_W, OUT_H and OUT_W, the offset of the first number and the
// stride of pixels, IN_FIRST, IN_PIXEL, OUT_FIRST and OUT_PIXEL, and the padding, TOP and LEFT.
#if PX > 8 || KERNEL_H > 7 || KERNEL_W > 7
#error PX must be 8 at most, and windows 7 x 7
#endif
#define COLUMNS (PX - 1 + KERNEL_W)

#define EACH_OF_7(call) call(0) call(1) call(2) call(3) call(4) call(5) call(6)
#define EACH_OF_8(call) EACH_OF_7(call) call(7)
#define EACH_PIXEL(call, a, b) \
    call(0, a, b) call(1, a, b) call(2, a, b) call(3, a, b) \
    call(4, a, b) call(5, a, b) call(6, a, b) call(7, a, b)

// sum[8 * i + 8 + p] is the sum of pixel p in the i-th row above the newest row; the first eight are 0.
float weights[49], line[16], loaded[16], sum[64];
int offset[16];  // of each column in a row
int channel, image, column, left, row;  // row: the next one of the input

#define KEEP(kx, ky) \
    if (kx < KERNEL_W && ky < KERNEL_H) \
        weights[ky * 7 + kx] = weight_of(ky * KERNEL_W + kx, channel);
#define KEEP_ROW(ky) \
    KEEP(0, ky) KEEP(1, ky) KEEP(2, ky) KEEP(3, ky) KEEP(4, ky) KEEP(5, ky) KEEP(6, ky)

// Unconditional: a load that depends on a condition is waited for before the next is issued.
#define LOAD(i) if (i < COLUMNS) loaded[i] = in_at(start + offset[i]);
#define LOAD_8(i) LOAD(i + 8)
#define PLACE(i) \
    if (i < COLUMNS) offset[i] = clamp(left + i, 0, IN_W - 1) * IN_PIXEL + IN_FIRST + channel;
#define PLACE_8(i) PLACE(i + 8)
#define COPY(i) if (i < COLUMNS) line[i] = loaded[i];
#define COPY_8(i) COPY(i + 8)
#define OUTSIDE(i) if (i < COLUMNS && uint(left + i) >= uint(IN_W)) line[i] = 0.0;
#define OUTSIDE_8(i) OUTSIDE(i + 8)

void load() {
    int start = (image * IN_H + clamp(row, 0, IN_H - 1)) * IN_W * IN_PIXEL;
    EACH_OF_8(LOAD) EACH_OF_8(LOAD_8)
}

// Copies the next row to `line`, with zeros for columns outside. Returns whether the row is inside.
bool next_row() {
#if !AHEAD
    load();
#endif
    EACH_OF_8(COPY) EACH_OF_8(COPY_8)
    if (left < 0 || left + COLUMNS > IN_W) {
        EACH_OF_8(OUTSIDE) EACH_OF_8(OUTSIDE_8)
    }
    bool inside = row >= 0 && row < IN_H;
    ++row;
#if AHEAD
    load();
#endif
    return inside;
}

#define CLEAR(p, i, unused) sum[8 * i + p] = 0.0;
#define CLEAR_ROW(i) EACH_PIXEL(CLEAR, i, 0)
// Sums move up by a row as the first tap is added to them, the oldest row first.
#define MOVE(p, i, unused) if (p < PX) sum[8 * i + 8 + p] = sum[8 * i + p];
#define MOVE_ON(p, i, ky) \
    if (p < PX) sum[8 * i + 8 + p] = sum[8 * i + p] + line[p] * weights[ky * 7];
#define ADD(p, i, at) \
    if (p < PX) sum[8 * i + 8 + p] += line[p + at % 7] * weights[at];
#define TAP(kx, i, ky) if (kx < KERNEL_W) { EACH_PIXEL(ADD, i, (ky * 7 + kx)) }
#define LATER_TAPS(i, ky) \
    TAP(1, i, ky) TAP(2, i, ky) TAP(3, i, ky) TAP(4, i, ky) TAP(5, i, ky) TAP(6, i, ky)
// Updates the sums of the i-th row above by an input row that is inside, and by one outside.
#define ROW(i) if (i < KERNEL_H) { EACH_PIXEL(MOVE_ON, i, i) LATER_TAPS(i, i) }
#define NO_ROW(i) if (i < KERNEL_H) { EACH_PIXEL(MOVE, i, 0) }
#define OLDEST_FIRST(call) call(6) call(5) call(4) call(3) call(2) call(1) call(0)

#define FINISH(p) \
    if (p < PX && column + p < OUT_W) { \
        int at = (start + p) * OUT_PIXEL + OUT_FIRST + channel; \
        result[at] = epilogue(sum[8 * KERNEL_H + p], at, channel); \
    }

// Computes PX pixels from `column` on of rows `top` to `bottom` - 1.
void convolve(int top, int bottom) {
    EACH_OF_8(CLEAR_ROW)
    // Rows of padding above the first row of the input are skipped.
    int begin = clamp(TOP, top, top + KERNEL_H - 1);
    row = begin - TOP;
#if AHEAD
    load();
#endif
    for (int y = begin - (KERNEL_H - 1); y < bottom; ++y) {
        if (next_row()) {
            OLDEST_FIRST(ROW)
        } else {
            OLDEST_FIRST(NO_ROW)
        }
        if (y >= top) {
            int start = (image * OUT_H + y) * OUT_W + column;
            EACH_OF_8(FINISH)
        }
    }
}

void main() {
    int group = int(INVOCATION_ID.x) / c;
    channel = int(INVOCATION_ID.x) - group * c;
    column = group * PX;
    if (column >= OUT_W) return;
    left = column - LEFT;
    EACH_OF_7(KEEP_ROW)
    EACH_OF_8(PLACE) EACH_OF_8(PLACE_8)
    int strips = (OUT_H + ROWS - 1) / ROWS;
    for (int strip = int(WORKGROUP_ID.y); strip < n * strips; strip += int(WORKGROUP_COUNT.y)) {
        image = strip / strips;
        int top = (strip - image * strips) * ROWS;
        convolve(top, min(top + ROWS, OUT_H));
    }
}
