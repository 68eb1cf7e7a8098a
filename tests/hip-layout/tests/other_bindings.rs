//! Our declarations against bindings that others generated from the headers of ROCm 6.4 and 7.

mod rocm_6 {
    use cubecl_hip_sys_6 as other;
    include!("compare/here.rs");
}

mod rocm_7 {
    use cubecl_hip_sys_7 as other;
    include!("compare/here.rs");
}

/// The two functions that ROCm 5.2's header lacks: these lines compile only with the signatures that ours stand for.
#[test]
fn functions_newer_than_the_installed_header_have_the_same_arguments() {
    use cubecl_hip_sys_7 as other;
    fn two<A, B, R>(_: unsafe fn(A, B) -> R) -> [usize; 3] {
        [
            std::mem::size_of::<A>(),
            std::mem::size_of::<B>(),
            std::mem::size_of::<R>(),
        ]
    }
    let pointer = std::mem::size_of::<*mut u8>();
    let stream = two::<other::hipStream_t, *mut other::hipDevice_t, _>(|s, d| unsafe {
        other::hipStreamGetDevice(s, d)
    });
    assert_eq!(stream, [pointer, pointer, 4]);
    let properties = two::<*mut other::hipDeviceProp_tR0600, i32, _>(|p, d| unsafe {
        other::hipGetDevicePropertiesR0600(p, d)
    });
    assert_eq!(properties, [pointer, 4, 4]);
}
