/* y = a * x + y */
extern "C" __global__ void saxpy(unsigned long long n, float a, const float *x, float *y) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
