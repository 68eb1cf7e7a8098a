/* Paints the Mandelbrot set with a kernel from source, on whatever device is current: an AMD or NVIDIA GPU, or the CPU.
 *
 *     mandelbrot KERNEL PICTURE     for example: mandelbrot examples/kernels/mandelbrot.hip mandelbrot.ppm */
#include <stdio.h>
#include <stdlib.h>
#include <taskgpu.h>

enum { WIDTH = 1200, HEIGHT = 800, MOST = 500, TILE = 16 };

/* Ends the program with the library's own words, a compiler's log for example. */
static void ok(tgpu_status status) {
    static char text[1 << 16];
    size_t needed;
    if (status == TGPU_OK) return;
    tgpu_error_text(text, sizeof text, &needed);
    fprintf(stderr, "%s: %s\n", tgpu_status_name(status), text);
    exit(1);
}

int main(int argc, char **argv) {
    static char source[1 << 16];
    static int steps[HEIGHT][WIDTH];
    if (argc != 3) return fprintf(stderr, "usage: mandelbrot KERNEL PICTURE\n"), 2;
    FILE *f = fopen(argv[1], "rb");
    if (!f || fread(source, 1, sizeof source - 1, f) == 0) return perror(argv[1]), 1;
    fclose(f);

    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    tgpu_module module;
    tgpu_kernel kernel;
    options.name = argv[1];
    ok(tgpu_module_compile(source, &options, &module));
    ok(tgpu_kernel_get(module, "mandelbrot", &kernel));

    int width = WIDTH, height = HEIGHT, most = MOST;
    float left = -2.25f, top = 1.0f, step = 3.0f / WIDTH;
    void *points;
    ok(tgpu_malloc(sizeof steps, &points));
    tgpu_launch_config shape = TGPU_LAUNCH_CONFIG_INIT;
    shape.grid[0] = (WIDTH + TILE - 1) / TILE, shape.grid[1] = (HEIGHT + TILE - 1) / TILE;
    shape.block[0] = shape.block[1] = TILE;
    ok(tgpu_launch(kernel, &shape, TGPU_ARGS(&width, &height, &left, &top, &step, &most, &points)));
    ok(tgpu_memcpy(steps, points, sizeof steps, NULL));
    ok(tgpu_synchronize());

    f = fopen(argv[2], "wb");
    if (!f) return perror(argv[2]), 1;
    fprintf(f, "P6\n%d %d\n255\n", WIDTH, HEIGHT);
    for (int i = 0; i < WIDTH * HEIGHT; i++) {
        int n = steps[i / WIDTH][i % WIDTH];
        int light = n == MOST ? 0 : 255 - 255 * n / MOST;
        fputc(light * (n % 8 + 8) / 16, f), fputc(light * (n % 16 + 16) / 32, f), fputc(light, f);
    }
    if (fclose(f) != 0) return perror(argv[2]), 1;
    printf("%s: %d x %d points\n", argv[2], WIDTH, HEIGHT);
    ok(tgpu_free(points));
    ok(tgpu_kernel_destroy(kernel));
    ok(tgpu_module_destroy(module));
    return 0;
}
