// Invocations that follow one another through blocks of columns, then of rows, then matrices, so that
// a workgroup has several small matrices, and work for each of its invocations. The launch has one
// dimension.
uniform int batch;

// The matrix, the row and the column with which invocation `at` begins, where each takes `high` of `rows`
// by `wide` of `columns`. Some invocations may stand beyond the last matrix.
ivec3 flat_place(int at, int columns, int rows, int wide, int high) {
    int across = (columns + wide - 1) / wide, down = (rows + high - 1) / high;
    int block = at / across, matrix = block / down;
    return ivec3(matrix, (block - matrix * down) * high, (at - block * across) * wide);
}
