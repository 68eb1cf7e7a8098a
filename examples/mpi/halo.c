// Heat on a ring that is cut into one piece for each rank, with one rank for each device. In every step a rank needs one
// cell from each neighbour: the halo. It is fetched and sent while the device already works on the cells that do not
// need it. The result is compared with the exact solution.
//
//     mpirun -n 4 ./halo
//
// SPDX-License-Identifier: MIT OR Apache-2.0
#include "local_rank.h"
#include <math.h>
#include <mpi.h>
#include <stdio.h>

enum { CELLS = 1 << 12, STEPS = 500 }; // of each rank
static const double SPREAD = 0.25;     // how much of a difference is levelled in one step

// Stops all ranks if a call failed, and says why.
static void check(tgpu_status status, const char *what) {
    if (status == TGPU_OK) return;
    tgpu_error_info why = TGPU_ERROR_INFO_INIT;
    tgpu_error_info_get(&why);
    fprintf(stderr, "%s: %s: %s\n", what, tgpu_status_name(status), why.text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define CHECK(call) check(call, #call)

// One step for `count` cells from `first` on, `stride` apart.
static const char source[] =
    "extern \"C\" __global__ void level(const double *from, double *to, unsigned long long first,\n"
    "                                 unsigned long long stride, unsigned long long count, double spread) {\n"
    "    unsigned long long n = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x, i = first + n * stride;\n"
    "    if (n < count) to[i] = from[i] + spread * (from[i - 1] - 2 * from[i] + from[i + 1]);\n"
    "}\n";

static void step(tgpu_kernel kernel, tgpu_stream stream, double *from, double *to, uint64_t first, uint64_t stride,
                 uint64_t count) {
    double spread = SPREAD;
    void *args[] = {&from, &to, &first, &stride, &count, &spread};
    tgpu_launch_config shape = TGPU_LAUNCH_CONFIG_INIT;
    CHECK(tgpu_kernel_suggest(kernel, count, &shape.grid[0], &shape.block[0]));
    shape.stream = stream;
    CHECK(tgpu_launch(kernel, &shape, args));
}

int main(int argc, char **argv) {
    int rank, ranks, local = local_rank(); // before MPI_Init
    if (local >= 0) device_set_by_rank(local);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (local < 0) { // an unknown launcher: MPI knows who shares this machine
        MPI_Comm machine;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
        MPI_Comm_rank(machine, &local);
        MPI_Comm_free(&machine);
    }
    CHECK(device_set_by_rank(local));
    tgpu_device device;
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK(tgpu_device_get(&device));
    CHECK(tgpu_device_info_get(device, &info));
    printf("rank %d of %d: device %d, %s\n", rank, ranks, (int)device, info.name);

    const double turn = 2 * acos(-1.0) / ((double)CELLS * ranks); // one wave around the ring
    const size_t bytes = (CELLS + 2) * sizeof(double);            // the halo is at both ends
    double *now, *next, *host, *edge; // edge: own first and last cell, then the neighbours'
    tgpu_module module;
    tgpu_kernel kernel;
    tgpu_stream inner, outer; // outer has the halo and what depends on it, and goes first
    tgpu_stream_options urgent = TGPU_STREAM_OPTIONS_INIT;
    urgent.priority = TGPU_PRIORITY_HIGH;
    CHECK(tgpu_module_compile(source, NULL, &module));
    CHECK(tgpu_kernel_get(module, "level", &kernel));
    CHECK(tgpu_malloc(bytes, (void **)&now));
    CHECK(tgpu_malloc(bytes, (void **)&next));
    CHECK(tgpu_host_malloc(bytes, (void **)&host));
    CHECK(tgpu_host_malloc(4 * sizeof(double), (void **)&edge));
    CHECK(tgpu_stream_get(&inner));
    CHECK(tgpu_stream_create(&urgent, &outer));

    for (int i = 0; i < CELLS; i++) host[i + 1] = sin(turn * ((double)rank * CELLS + i));
    CHECK(tgpu_memcpy(now + 1, host + 1, CELLS * sizeof(double), inner));

    const int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    for (int t = 0; t < STEPS; t++) {
        CHECK(tgpu_stream_wait_stream(outer, inner)); // the step before
        CHECK(tgpu_memcpy(&edge[0], now + 1, sizeof(double), outer));
        CHECK(tgpu_memcpy(&edge[1], now + CELLS, sizeof(double), outer));
        step(kernel, inner, now, next, 2, 1, CELLS - 2); // needs no halo

        CHECK(tgpu_stream_synchronize(outer)); // the edges are here, and what was received before is used up
        MPI_Sendrecv(&edge[0], 1, MPI_DOUBLE, left, 0, &edge[3], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&edge[1], 1, MPI_DOUBLE, right, 1, &edge[2], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        CHECK(tgpu_memcpy(now, &edge[2], sizeof(double), outer));
        CHECK(tgpu_memcpy(now + CELLS + 1, &edge[3], sizeof(double), outer));
        step(kernel, outer, now, next, 1, CELLS - 1, 2); // the first and the last cell
        CHECK(tgpu_stream_wait_stream(inner, outer));
        double *swap = now;
        now = next, next = swap;
    }
    CHECK(tgpu_memcpy(host + 1, now + 1, CELLS * sizeof(double), inner));
    CHECK(tgpu_stream_synchronize(inner));

    // A sine wave keeps its form and loses the same part of its height in every step.
    const double height = pow(1 - 2 * SPREAD * (1 - cos(turn)), STEPS);
    double error = 0, worst;
    for (int i = 0; i < CELLS; i++) {
        const double wrong = fabs(host[i + 1] - height * sin(turn * ((double)rank * CELLS + i)));
        if (!(wrong <= error)) error = wrong;
    }
    MPI_Allreduce(&error, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    const int right_answer = worst < 1e-12;
    if (rank == 0) printf("%d ranks, %d steps: off by %.1e, %s\n", ranks, STEPS, worst, right_answer ? "right" : "WRONG");

    CHECK(tgpu_stream_destroy(outer));
    CHECK(tgpu_kernel_destroy(kernel));
    CHECK(tgpu_module_destroy(module));
    CHECK(tgpu_free(now));
    CHECK(tgpu_free(next));
    CHECK(tgpu_host_free(host));
    CHECK(tgpu_host_free(edge));
    MPI_Finalize();
    return !right_answer;
}
