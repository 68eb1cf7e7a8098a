//! The layout of every struct of the ABI on 64-bit machines, in numbers. A failure here means that
//! programs built with an earlier header of the same minor version break: fields are only ever
//! added at the end.

use super::{backend::*, device::*, error::*, event::*, kernel::*, launch::*, memory::*, module::*};
use super::{scope::*, stream::*, task::*};
use std::mem::{align_of, offset_of, size_of};

macro_rules! layout {
    ($test:ident, $type:ty, $size:expr, { $($field:ident: $offset:expr),* $(,)? }) => {
        #[test]
        #[cfg(target_pointer_width = "64")]
        fn $test() {
            assert_eq!((size_of::<$type>(), align_of::<$type>()), ($size, 8));
            $(assert_eq!(offset_of!($type, $field), $offset, stringify!($field));)*
        }
    };
}

layout!(error_info, tgpu_error_info, 688, {
    struct_size: 0, status: 8, device: 12, stream_id: 16, native_code: 24, backend: 32, native_name: 48, function: 112,
    text: 176,
});
layout!(backend_info, tgpu_backend_info, 864, {
    struct_size: 0, available: 8, device_count: 12, name: 16, version: 32, path: 96, reason: 352,
});
layout!(device_info, tgpu_device_info, 472, {
    struct_size: 0, device: 8, ordinal: 12, backend: 16, name: 32, arch: 288, uuid: 352, pci: 368, total_memory: 400,
    max_shared_per_block: 408, compute_units: 416, warp_size: 420, max_threads_per_block: 424, max_block: 428,
    max_grid: 440, priority_least: 452, priority_greatest: 456, hardware_queues: 460, memory_pools: 464,
});
layout!(stream_options, tgpu_stream_options, 16, { struct_size: 0, priority: 8, flags: 12 });
layout!(stream_info, tgpu_stream_info, 40, {
    struct_size: 0, device: 8, priority: 12, effective_priority: 16, native_priority: 20, kind: 24, capturing: 28,
    id: 32,
});
layout!(event_options, tgpu_event_options, 16, { struct_size: 0, flags: 8 });
layout!(scope, tgpu_scope, 16, { opaque: 0 });
layout!(task_options, tgpu_task_options, 16, { struct_size: 0, flags: 8 });
layout!(pointer_info, tgpu_pointer_info, 32, { struct_size: 0, kind: 8, device: 12, base: 16, size: 24 });
layout!(compile_options, tgpu_compile_options, 48, {
    struct_size: 0, name: 8, options: 16, option_count: 24, name_expressions: 32, name_expression_count: 40,
});
layout!(host_block, tgpu_host_block, 56, {
    index: 0, grid: 12, block: 24, device: 36, shared: 40, shared_bytes: 48,
});
layout!(kernel_info, tgpu_kernel_info, 40, {
    struct_size: 0, max_threads_per_block: 8, registers: 12, warp_size: 16, reserved: 20, static_shared_bytes: 24,
    local_bytes: 32,
});
layout!(launch_config, tgpu_launch_config, 48, {
    struct_size: 0, grid: 8, block: 20, shared_bytes: 32, stream: 40,
});
