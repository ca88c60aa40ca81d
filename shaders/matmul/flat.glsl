// A launch of one dimension whose invocations are numbered along the columns of a matrix, then its rows,
// then the matrices, so that a workgroup computes several small matrices and none of its invocations is
// idle.
uniform int batch;

// The matrix, the first row and the first column of an invocation, where each computes `tile_rows` of `rows`
// by `tile_columns` of `columns`. The last invocations may be past the last matrix.
ivec3 flat_place(int invocation, int columns, int rows, int tile_columns, int tile_rows) {
    int across = (columns + tile_columns - 1) / tile_columns, down = (rows + tile_rows - 1) / tile_rows;
    int block = invocation / across, matrix = block / down;
    return ivec3(matrix, (block - matrix * down) * tile_rows, (invocation - block * across) * tile_columns);
}
