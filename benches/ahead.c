/* The loops that kernels from source are compared with, compiled ahead with -O3 -march=native -fopenmp (xtask). */
#include "ahead.h"

void ahead_saxpy(size_t n, float a, const float *restrict x, float *restrict y) {
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}

enum { TILE = 16 };

/* What examples/kernels/matmul.hip says, with a loop over the threads between one barrier and the next. */
void ahead_matmul(int n, const float *restrict a, const float *restrict b, float *restrict c) {
    int tiles = (n + TILE - 1) / TILE;
#pragma omp parallel for collapse(2)
    for (int by = 0; by < tiles; by++) {
        for (int bx = 0; bx < tiles; bx++) {
            float tile_a[TILE][TILE], tile_b[TILE][TILE], sum[TILE][TILE] = {{0}};
            int row = by * TILE, column = bx * TILE;
            for (int first = 0; first < n; first += TILE) {
                for (int y = 0; y < TILE; y++) {
                    for (int x = 0; x < TILE; x++) {
                        int across = first + x, down = first + y;
                        tile_a[y][x] = row + y < n && across < n ? a[(row + y) * n + across] : 0;
                        tile_b[y][x] = down < n && column + x < n ? b[down * n + column + x] : 0;
                    }
                }
                for (int y = 0; y < TILE; y++)
                    for (int x = 0; x < TILE; x++)
                        for (int k = 0; k < TILE; k++) sum[y][x] += tile_a[y][k] * tile_b[k][x];
            }
            for (int y = 0; y < TILE; y++)
                for (int x = 0; x < TILE; x++)
                    if (row + y < n && column + x < n) c[(row + y) * n + column + x] = sum[y][x];
        }
    }
}

/* What the kernels of source.c that exchange numbers do: a loop over the threads, and where they have a barrier, the next. */
void ahead_exchange(int blocks, const float *restrict in, float *restrict out) {
    for (int b = 0; b < blocks; b++) {
        float shared[2][AHEAD_THREADS], mine[AHEAD_THREADS];
        for (int t = 0; t < AHEAD_THREADS; t++) mine[t] = in[b * AHEAD_THREADS + t];
        for (int round = 0; round < AHEAD_BARRIERS; round++) {
            for (int t = 0; t < AHEAD_THREADS; t++) shared[round % 2][t] = mine[t];
            for (int t = 0; t < AHEAD_THREADS; t++) {
                float next = shared[round % 2][(t + 1) % AHEAD_THREADS], x = mine[t];
                for (int i = 0; i < AHEAD_STEPS; i++) x = x * 0.5f + next;
                mine[t] = x;
            }
        }
        for (int t = 0; t < AHEAD_THREADS; t++) out[b * AHEAD_THREADS + t] = mine[t];
    }
}
