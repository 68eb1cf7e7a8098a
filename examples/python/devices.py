"""One asyncio task for each device, while the event loop goes on with other work.

Every task smooths its own array with a kernel compiled from source, on its own device, and waits without holding up the
loop. What the devices computed is compared with NumPy.
"""
# SPDX-License-Identifier: MIT OR Apache-2.0

import asyncio

import numpy as np

import taskgpu

SOURCE = """
extern "C" __global__ void smooth(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float left = in[i > 0 ? i - 1 : i], right = in[i < n - 1 ? i + 1 : i];
    out[i] = 0.25f * left + 0.5f * in[i] + 0.25f * right;
}
"""
N, ROUNDS = 1 << 18, 100


def expected(x):
    for _ in range(ROUNDS):
        padded = np.pad(x, 1, mode="edge")
        x = np.float32(0.25) * padded[:-2] + np.float32(0.5) * x + np.float32(0.25) * padded[2:]
    return x


async def smooth(kernel, device, x):
    taskgpu.set_device(device)  # for this task only
    front, back = taskgpu.to_device(x), taskgpu.Buffer(x.shape, x.dtype)
    start = taskgpu.Event().record()
    for _ in range(ROUNDS):
        kernel.launch(front, back, np.int32(N), grid=-(-N // 256), block=256)
        front, back = back, front
    end = taskgpu.Event().record()
    await taskgpu.done(end)  # other tasks run
    return taskgpu.to_host(front), end.seconds_since(start)


async def count(ticks):
    """The other work: ticks until it is cancelled."""
    while True:
        await asyncio.sleep(0.001)
        ticks.append(None)


async def main():
    kernel = taskgpu.Module(SOURCE, name="smooth.hip").kernel("smooth")  # for every device
    ticks = []
    other = asyncio.create_task(count(ticks))
    inputs = [np.random.default_rng(d).random(N, np.float32) for d in range(taskgpu.device_count())]
    results = await asyncio.gather(*(smooth(kernel, d, x) for d, x in enumerate(inputs)))
    other.cancel()
    for d, (x, (y, seconds)) in enumerate(zip(inputs, results)):
        np.testing.assert_allclose(y, expected(x), rtol=1e-5)
        print(f"device {d}, {taskgpu.device_info(d).name.decode()}: {ROUNDS} rounds in {seconds * 1e3:.1f} ms, right")
    print(f"the event loop ticked {len(ticks)} times meanwhile")
    assert ticks


taskgpu.run(main())
