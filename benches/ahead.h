/* Loops compiled ahead, for benches/source.c to compare with. */
#ifndef AHEAD_H
#define AHEAD_H

#include <stddef.h>

/* A block that exchanges numbers: so many threads and barriers, and between two of them so many times two operations. */
enum { AHEAD_THREADS = 256, AHEAD_BARRIERS = 10, AHEAD_STEPS = 50 };

void ahead_saxpy(size_t n, float a, const float *restrict x, float *restrict y);
void ahead_matmul(int n, const float *restrict a, const float *restrict b, float *restrict c);
void ahead_exchange(int blocks, const float *restrict in, float *restrict out);

#endif
