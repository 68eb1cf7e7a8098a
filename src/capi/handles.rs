//! # Handles
//!
//! The types of the objects that the sections below are about.

/// Incomplete: what a tgpu_stream stands for.
pub struct tgpu_stream_s {
    _private: (),
}

/// Incomplete: what a tgpu_event stands for.
pub struct tgpu_event_s {
    _private: (),
}

/// Incomplete: what a tgpu_task stands for.
pub struct tgpu_task_s {
    _private: (),
}

/// Incomplete: what a tgpu_module stands for.
pub struct tgpu_module_s {
    _private: (),
}

/// Incomplete: what a tgpu_kernel stands for.
pub struct tgpu_kernel_s {
    _private: (),
}

/// A stream: a queue of work of one device that runs in order. NULL is the current stream.
pub type tgpu_stream = *mut tgpu_stream_s;

/// An event: a point in a stream that may be waited for.
pub type tgpu_event = *mut tgpu_event_s;

/// A task: the owner of a current device and of current streams.
pub type tgpu_task = *mut tgpu_task_s;

/// A module: code that holds kernels.
pub type tgpu_module = *mut tgpu_module_s;

/// A kernel: a function that a launch runs on a device.
pub type tgpu_kernel = *mut tgpu_kernel_s;
