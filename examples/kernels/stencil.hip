/* One step of heat that spreads through a box of nx * ny * nz points: each inner point moves towards the mean of its six
   neighbours, those on the border stay. rate is what a module can change without being compiled anew. */
__constant__ float rate = 0.5f;

__device__ int point(int x, int y, int z, int nx, int ny) {
    return (z * ny + y) * nx + x;
}

extern "C" __global__ void stencil(int nx, int ny, int nz, const float *before, float *after) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) return;
    int here = point(x, y, z, nx, ny);
    float value = before[here];
    if (x > 0 && y > 0 && z > 0 && x < nx - 1 && y < ny - 1 && z < nz - 1) {
        float mean = (before[here - 1] + before[here + 1] + before[here - nx] + before[here + nx] +
                      before[here - nx * ny] + before[here + nx * ny]) /
                     6;
        value += rate * (mean - value);
    }
    after[here] = value;
}
