/* How often each of the 256 bytes occurs among n. Each block counts in shared memory first, where its threads are in
   nobody's way but each other's, and then adds what it has to the counts of all. */
extern "C" __global__ void histogram(unsigned n, const unsigned char *bytes, unsigned *counts) {
    __shared__ unsigned mine[256];
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[bytes[i]], 1u);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
        if (mine[i] != 0) atomicAdd(&counts[i], mine[i]);
}
