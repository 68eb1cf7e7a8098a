//! Streams that somebody captures into a graph. What is captured is counted and not run.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::counts::{CAPTURED, SPOILT};
use crate::entry::{write, Hip};
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::stream::{self, Stream};

type hipGraph_t = *mut c_void;

/// Modes: any unsafe call of any thread spoils the capture; only those of its own thread; none.
const GLOBAL: hipStreamCaptureMode = 0;
const RELAXED: hipStreamCaptureMode = hipStreamCaptureModeRelaxed;
const NONE: hipStreamCaptureStatus = hipStreamCaptureStatusNone;
const ACTIVE: hipStreamCaptureStatus = 1;
const INVALIDATED: hipStreamCaptureStatus = 2;

thread_local! {
    static MODE: Cell<hipStreamCaptureMode> = const { Cell::new(GLOBAL) };
}

/// Streams that are being captured.
static CAPTURES: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());
/// How many they are, for those who only want to know whether there is one.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What a stream knows of its capture.
#[derive(Default)]
pub struct Capture {
    status: hipStreamCaptureStatus,
    mode: hipStreamCaptureMode,
    thread: Option<ThreadId>,
    nodes: usize,
}

/// True if a capture takes the operation that is about to be queued.
pub fn takes(stream: &Stream) -> Hip<bool> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Ok(false);
    }
    let mut capture = stream.capture.lock();
    match capture.status {
        ACTIVE => {
            capture.nodes += 1;
            CAPTURED.up();
            Ok(true)
        }
        INVALIDATED => Err(hipErrorStreamCaptureInvalidated),
        _ => Ok(false),
    }
}

fn spoil(stream: &Stream) {
    let mut capture = stream.capture.lock();
    if capture.status == ACTIVE {
        capture.status = INVALIDATED;
        SPOILT.up();
    }
}

/// A call that would wait for the stream, or ask how far it is, spoils a capture of it.
pub fn refuse(stream: &Stream) -> Hip<()> {
    if stream.capture.lock().status == NONE {
        return unsafe_call();
    }
    spoil(stream);
    Err(hipErrorStreamCaptureUnsupported)
}

/// A call that might not be safe beside a capture spoils those whose mode forbids it.
pub fn unsafe_call() -> Hip<()> {
    let mode = MODE.try_with(Cell::get).unwrap_or(RELAXED);
    if COUNT.load(Ordering::Relaxed) == 0 || mode == RELAXED {
        return Ok(());
    }
    let us = std::thread::current().id();
    let mut refused = false;
    for stream in CAPTURES.lock().iter() {
        let (of_mode, thread) = {
            let capture = stream.capture.lock();
            (capture.mode, capture.thread)
        };
        let forbids = match of_mode {
            RELAXED => false,
            GLOBAL => mode == GLOBAL || thread == Some(us),
            _ => thread == Some(us),
        };
        if forbids {
            spoil(stream);
            refused = true;
        }
    }
    match refused {
        true => Err(hipErrorStreamCaptureUnsupported),
        false => Ok(()),
    }
}

/// Something forbidden was done with what a capture has.
pub fn spoil_all() {
    CAPTURES.lock().iter().for_each(|stream| spoil(stream));
}

/// The stream is captured no more.
pub fn forget(stream: &Arc<Stream>) {
    let mut captures = CAPTURES.lock();
    captures.retain(|other| !Arc::ptr_eq(other, stream));
    COUNT.store(captures.len(), Ordering::Relaxed);
}

entries! {
    fn hipThreadExchangeStreamCaptureMode(call, mode: *mut hipStreamCaptureMode) {
        if mode.is_null() || !(GLOBAL..=RELAXED).contains(&*mode) {
            return Err(hipErrorInvalidValue);
        }
        let before = MODE.try_with(|ours| ours.replace(*mode)).unwrap_or(GLOBAL);
        write(mode, before)
    }

    fn hipStreamBeginCapture(call, handle: hipStream_t, mode: hipStreamCaptureMode) {
        let stream = stream::find(handle)?;
        if stream.is_legacy {
            return Err(hipErrorStreamCaptureUnsupported);
        }
        let mut capture = stream.capture.lock();
        if capture.status != NONE || !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(hipErrorIllegalState);
        }
        *capture = Capture {
            status: ACTIVE,
            mode,
            thread: Some(std::thread::current().id()),
            nodes: 0,
        };
        drop(capture);
        let mut captures = CAPTURES.lock();
        captures.push(stream);
        COUNT.store(captures.len(), Ordering::Relaxed);
        Ok(())
    }

    /// The graph is the number of its nodes, for `hipGraphGetNodes`.
    fn hipStreamEndCapture(call, handle: hipStream_t, graph: *mut hipGraph_t) {
        let stream = stream::find(handle)?;
        write(graph, std::ptr::null_mut())?;
        let us = std::thread::current().id();
        let capture = {
            let mut capture = stream.capture.lock();
            if capture.status == NONE {
                return Err(hipErrorIllegalState);
            }
            if capture.mode != RELAXED && capture.thread != Some(us) {
                return Err(hipErrorStreamCaptureWrongThread);
            }
            std::mem::take(&mut *capture)
        };
        forget(&stream);
        match capture.status {
            ACTIVE => call.give(graph, Box::into_raw(Box::new(capture.nodes)).cast()),
            _ => Err(hipErrorStreamCaptureInvalidated),
        }
    }

    fn hipStreamIsCapturing(call, handle: hipStream_t, status: *mut hipStreamCaptureStatus) {
        let stream = stream::find(handle)?;
        let is = stream.capture.lock().status;
        write(status, is)
    }

    /// Tells how many nodes there are; hands none out.
    fn hipGraphGetNodes(call, graph: hipGraph_t, nodes: *mut *mut c_void, count: *mut usize) {
        if graph.is_null() {
            return Err(hipErrorInvalidValue);
        }
        if !nodes.is_null() {
            return Err(hipErrorNotSupported);
        }
        write(count, *graph.cast::<usize>())
    }

    fn hipGraphDestroy(call, graph: hipGraph_t) {
        if graph.is_null() {
            return Err(hipErrorInvalidValue);
        }
        drop(Box::from_raw(graph.cast::<usize>()));
        Ok(())
    }
}
