/* Which of the ranks on this machine am I? SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef LOCAL_RANK_H
#define LOCAL_RANK_H

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <taskgpu.h>

/*
 * The number, from 0, of this process among those that its launcher started on this machine, or -1 if no launcher has
 * said so. It is known before MPI_Init, when a GPU-aware MPI already wants to see the right device.
 */
static inline int local_rank(void) {
    static const char *const names[] = {
        "OMPI_COMM_WORLD_LOCAL_RANK", /* Open MPI */
        "MPI_LOCALRANKID",            /* MPICH and what is built on it */
        "SLURM_LOCALID",              /* Slurm's srun */
        "FLUX_TASK_LOCAL_ID",         /* Flux */
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        char *end = NULL;
        long rank;
        if (!value || *value < '0' || *value > '9') continue;
        errno = 0;
        rank = strtol(value, &end, 10);
        if (*end == '\0' && errno == 0 && rank <= INT_MAX) return (int)rank;
    }
    return -1;
}

/*
 * Makes a device current by the local rank: one for each rank, in turn if there are more ranks than devices. Where the
 * launcher shows each rank one device only, that one. A rank of -1 counts as 0.
 */
static inline tgpu_status device_set_by_rank(int rank) {
    int32_t count = 0;
    tgpu_status status = tgpu_device_count(&count);
    if (status != TGPU_OK) return status;
    return tgpu_device_set(rank < 0 ? 0 : rank % count);
}

#endif
