"""Tests of taskgpu.py and of the example, on four host devices: `cargo xtask test` runs them."""
# SPDX-License-Identifier: MIT OR Apache-2.0

import asyncio
import gc
import os
import sys
import threading
import unittest

import numpy as np

import taskgpu


class Gate:
    """Holds the current stream, or `stream`, up until it is opened."""

    def __init__(self, stream=None):
        self._open = threading.Event()
        self._kernel = taskgpu.Kernel.from_python(lambda block: self._open.wait(60))
        self._kernel.launch(stream=stream)

    def open(self):
        self._open.set()


def in_loop(test):
    """Runs a coroutine of a test under taskgpu.run, and gives up after a minute."""
    return lambda self: taskgpu.run(asyncio.wait_for(test(self), 60))


class Threads(unittest.TestCase):
    def test_devices(self):
        self.assertEqual(taskgpu.device_count(), 4)
        self.assertEqual(taskgpu.device_info(3).backend, b"host")
        taskgpu.set_device(2)
        with taskgpu.device(1):
            self.assertEqual(taskgpu.current_device(), 1)
            with self.assertRaises(KeyError), taskgpu.device(3):
                raise KeyError
            self.assertEqual(taskgpu.current_device(), 1)
        self.assertEqual(taskgpu.current_device(), 2)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(taskgpu.current_device()))
        thread.start()
        thread.join()
        self.assertEqual(seen, [0])
        taskgpu.set_device(0)

    def test_streams(self):
        own = taskgpu.stream_id()
        stream = taskgpu.Stream(priority="high")
        gate = Gate(stream)
        with stream.current():
            self.assertEqual(taskgpu.stream_id(), stream.id)
            self.assertEqual(taskgpu.call("stream_query", None), taskgpu.NOT_READY)
        self.assertEqual(taskgpu.stream_id(), own)
        self.assertEqual(taskgpu.call("stream_query", None), taskgpu.OK)
        start = taskgpu.Event().record(stream)
        other = taskgpu.Stream()
        other.wait(start)
        end = taskgpu.Event().record(other)
        with self.assertRaises(RuntimeError):
            end.seconds_since(start)
        gate.open()
        taskgpu.synchronize(other)
        self.assertGreaterEqual(end.seconds_since(start), 0)

    def test_arrays(self):
        for array in np.arange(12.0).reshape(3, 4), np.array([], np.int8), np.ones(5, np.complex64)[::2]:
            np.testing.assert_array_equal(taskgpu.to_host(taskgpu.to_device(array)), array)
        with self.assertRaises(ValueError):
            taskgpu.Buffer((2,), np.float32).copy_from(np.zeros(2))

    def test_kernel(self):
        def add(block, address, value, count):
            i = block.index[0]
            if i < count:
                np.ctypeslib.as_array((taskgpu.c_double * count).from_address(int(address)))[i] += value

        kernel = taskgpu.Kernel.from_python(add, np.uintp, np.float64, np.int32)
        x = taskgpu.to_device(np.arange(10.0))
        kernel.launch(x, np.float64(0.5), np.int32(10), grid=(4, 3, 1))
        kernel.launch(x, np.float64(1), np.int32(4), grid=4)
        result = taskgpu.to_host(x)
        # The first launch has three blocks with each x index.
        np.testing.assert_array_equal(result[4:], np.arange(4.0, 10))
        np.testing.assert_array_equal(result[:4], np.arange(4.0) + 3 * 0.5 + 1)
        with self.assertRaisesRegex(TypeError, "np.float32"):
            kernel.launch(x, 1.0, np.int32(1))

    def test_source(self):
        module = taskgpu.Module('extern "C" __global__ void set(int *x, int v) { x[blockIdx.x] = v + blockIdx.x; }')
        x = taskgpu.Buffer((3,), np.int32)
        module.kernel("set").launch(x, np.int32(5), grid=3)
        np.testing.assert_array_equal(taskgpu.to_host(x), [5, 6, 7])
        with self.assertRaisesRegex(taskgpu.Error, "(?s)TGPU_ERROR_COMPILE_FAILED.*wrong.hip.*oops"):
            taskgpu.Module("int f() { return oops; }", name="wrong.hip")

    def test_errors(self):
        with self.assertRaisesRegex(taskgpu.Error, "TGPU_ERROR_INVALID_DEVICE.* 99.*0 to 3"):
            taskgpu.set_device(99)
        with self.assertRaises(taskgpu.Error) as failure:
            taskgpu.Buffer((1 << 50,), np.uint8)
        self.assertEqual((failure.exception.name, failure.exception.device), ("TGPU_ERROR_OUT_OF_MEMORY", 0))


class Asyncio(unittest.TestCase):
    @in_loop
    async def test_the_loop_runs_while_a_kernel_does(self):
        gate = Gate()

        async def opener():
            await asyncio.sleep(0.02)
            gate.open()

        # If the wait held the loop up, nobody would open the gate.
        task = asyncio.create_task(opener())
        await taskgpu.done()
        await task
        # The same for a stream and an event, and at once where there is nothing to wait for.
        stream = taskgpu.Stream()
        for what in stream, taskgpu.Event():
            gate = Gate(stream)
            if isinstance(what, taskgpu.Event):
                what.record(stream)
            task = asyncio.create_task(opener())
            await taskgpu.done(what)
            await task
            await taskgpu.done(what)

    @in_loop
    async def test_a_scope_across_an_await_is_the_tasks_own(self):
        inside, leave = asyncio.Event(), asyncio.Event()

        async def holder():
            stream = taskgpu.Stream()
            with taskgpu.device(2):
                inside.set()
                await leave.wait()
                self.assertEqual(taskgpu.current_device(), 2)
            self.assertEqual(taskgpu.current_device(), 0)
            with stream.current():
                await asyncio.sleep(0)
                self.assertEqual(taskgpu.stream_id(), stream.id)

        task = asyncio.create_task(holder())
        await inside.wait()
        self.assertEqual(taskgpu.current_device(), 0)
        with taskgpu.device(3):
            leave.set()
            await task
            self.assertEqual(taskgpu.current_device(), 3)

    @in_loop
    async def test_tasks_have_their_own_streams_and_errors(self):
        started = asyncio.Event()

        async def one(i):
            taskgpu.set_device(i % 4)
            mine = taskgpu.stream_id()
            try:
                taskgpu.set_device(100 + i)
            except taskgpu.Error as error:
                await started.wait()
                self.assertIn(f"device {100 + i};", error.text)
            self.assertEqual((taskgpu.current_device(), taskgpu.stream_id()), (i % 4, mine))
            return mine

        tasks = [asyncio.create_task(one(i)) for i in range(40)]
        await asyncio.sleep(0)
        started.set()
        self.assertEqual(len(set(await asyncio.gather(*tasks))), 40)

    @in_loop
    async def test_thousands_of_tasks_leave_nothing_behind(self):
        async def one(i):
            with taskgpu.device(i % 4):
                buffer = taskgpu.to_device(np.full(8, i))
                await taskgpu.done()
                return taskgpu.to_host(buffer).sum() == 8 * i

        descriptors = len(os.listdir("/proc/self/fd"))
        highest = 0
        for _ in range(30):
            self.assertTrue(all(await asyncio.gather(*(one(i) for i in range(100)))))
            gc.collect()
            stream = taskgpu.Stream()
            highest = max(highest, taskgpu.stream_id(stream))
            gate = Gate(stream)
            waits = [asyncio.create_task(taskgpu.done(stream)) for _ in range(10)]
            await asyncio.sleep(0)  # each has looked, and waits by a descriptor
            gate.open()
            await asyncio.gather(*waits)
        # The library closes its duplicate of a descriptor a moment after it wrote to it, so one
        # of an earlier wait may be in the first count, or one of the last wait still be open.
        for _ in range(1000):
            if len(os.listdir("/proc/self/fd")) <= descriptors:
                break
            await asyncio.sleep(0.01)
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), descriptors)
        self.assertLess(highest, 1000, "streams are used again")

    @in_loop
    async def test_a_cancelled_wait(self):
        gate = Gate()
        waiting = asyncio.create_task(taskgpu.done())  # its own stream: at once
        await waiting
        stream = taskgpu.Stream()
        held = Gate(stream)
        waiting = asyncio.create_task(taskgpu.done(stream))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        held.open()
        gate.open()
        await taskgpu.done(stream)

    def test_the_thread_is_left_as_it_was(self):
        async def switch():
            taskgpu.set_device(3)

        taskgpu.set_device(1)
        taskgpu.run(switch())
        self.assertEqual(taskgpu.current_device(), 1)
        taskgpu.set_device(0)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    print(f"{program.result.testsRun} passed, 0 failed")
