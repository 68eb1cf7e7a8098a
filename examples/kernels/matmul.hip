/* c = a * b for square matrices of n x n numbers, row by row. Blocks of TILE x TILE threads, each of which computes one
   number of c. They load tiles of a and b into shared memory together, so that each number is read from memory once for
   TILE uses. */
#ifndef TILE
#define TILE 16
#endif

extern "C" __global__ __launch_bounds__(TILE *TILE) void matmul(int n, const float *a, const float *b, float *c) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int first = 0; first < n; first += TILE) {
        int across = first + threadIdx.x, down = first + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < n && across < n ? a[row * n + across] : 0;
        tile_b[threadIdx.y][threadIdx.x] = down < n && column < n ? b[down * n + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}
