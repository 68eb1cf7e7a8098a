/* The Mandelbrot set: for each point of a picture how many steps z = z * z + c takes to leave the circle of radius 2, at
   most `most`. (left, top) is the corner of the picture, step the distance of its points. */
extern "C" __global__ void mandelbrot(int width, int height, float left, float top, float step, int most, int *steps) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) return;
    float cx = left + column * step, cy = top - row * step;
    float x = 0, y = 0;
    int n = 0;
    while (n < most && x * x + y * y <= 4) {
        float next = x * x - y * y + cx;
        y = 2 * x * y + cy;
        x = next;
        n++;
    }
    steps[row * width + column] = n;
}
