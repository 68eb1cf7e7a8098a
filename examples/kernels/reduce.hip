/* The sum of n numbers of type T: each block leaves the sum of its part in sums[blockIdx.x]. The threads of a block add
   their numbers up as a tree, in shared memory that the launch brings: blockDim.x numbers, a power of two. */
template <class T>
__global__ void reduce(unsigned n, const T *x, T *sums) {
    extern __shared__ double memory[];
    T *part = (T *)memory;
    unsigned me = threadIdx.x;
    T sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + me; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[me] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (me < half) part[me] += part[me + half];
        __syncthreads();
    }
    if (me == 0) sums[blockIdx.x] = part[0];
}
