// Blocks of PX places of a row of x that the same taps reach: STRIDE_W apart.
#define PLACE_BLOCKS ((w + STRIDE_W * PX - 1) / (STRIDE_W * PX))

// The first of the places of a block: blocks of the same place in a stride follow each other.
int first_column(int block) {
    int phase = block / PLACE_BLOCKS;
    return (block - phase * PLACE_BLOCKS) * (STRIDE_W * PX) + phase;
}

// The row of dy whose window has row `row` of x under row `ky` of the kernel; -1 where there is none.
int dy_row_of(int row, int ky) {
    int at = row + PADDING_TOP - ky * DILATION_H;
    return at < 0 || at % STRIDE_H != 0 || at / STRIDE_H >= oh ? -1 : at / STRIDE_H;
}

// The column of dy whose window has column `left` of x under column `kx` of the kernel, which may be
// beyond its ends; NO_COLUMN where that is between two.
#define NO_COLUMN -0x40000000
int dy_column_of(int left, int kx) {
    const int ahead = KERNEL_W * DILATION_W;  // so that nothing negative is divided
    int at = left + PADDING_LEFT - kx * DILATION_W + ahead * STRIDE_W;
    return at % STRIDE_W != 0 ? NO_COLUMN : at / STRIDE_W - ahead;
}
