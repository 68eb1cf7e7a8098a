//! Gates of host devices: how a stream waits for what happens outside its backend.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use taskgpu::backend::{self, Backend, HostSettings, RawStream, StreamSpec};

fn stream_behind_a_flag(backend: &'static dyn Backend) -> (RawStream, backend::Gate, Arc<AtomicBool>) {
    backend.open(0).unwrap();
    let stream = backend.stream_create(0, StreamSpec::default()).unwrap().raw;
    let mut gate = None;
    backend
        .stream_gate(
            0,
            stream,
            Box::new(|g| {
                assert!(
                    backend.stream_idle(0, stream).unwrap(),
                    "held before the gate was handed over"
                );
                gate = Some(g);
                Ok(())
            }),
        )
        .unwrap();
    let gate = gate.unwrap();
    let passed = Arc::new(AtomicBool::new(false));
    let flag = passed.clone();
    backend
        .stream_callback(0, stream, Box::new(move |_| flag.store(true, Ordering::SeqCst)))
        .unwrap();
    (stream, gate, passed)
}

#[test]
fn work_behind_a_gate_waits_until_it_is_opened_or_dropped() {
    let settings = HostSettings {
        devices: 1,
        ..Default::default()
    };
    let backend = backend::load("host", settings).unwrap();
    for open in [true, false] {
        let (stream, gate, passed) = stream_behind_a_flag(backend);
        // Other streams go on meanwhile, and give the held one every chance to slip through.
        let other = backend.stream_create(0, StreamSpec::default()).unwrap().raw;
        backend.stream_callback(0, other, Box::new(|_| {})).unwrap();
        let mut fence = backend.fence(0, other).unwrap();
        assert!(backend.fence_block(&mut fence, None).unwrap());
        backend.fence_drop(fence);
        assert!(!passed.load(Ordering::SeqCst));
        assert!(!backend.stream_idle(0, stream).unwrap());
        match open {
            true => std::thread::spawn(move || gate.open()).join().unwrap(),
            false => drop(gate),
        }
        let mut fence = backend.fence(0, stream).unwrap();
        assert!(backend.fence_block(&mut fence, None).unwrap());
        backend.fence_drop(fence);
        assert!(passed.load(Ordering::SeqCst));
        backend.stream_destroy(0, stream);
        backend.stream_destroy(0, other);
    }
}
