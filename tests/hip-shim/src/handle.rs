//! Handles: the addresses of objects of ours, looked up before they are followed.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

/// The live objects of one kind.
pub struct Table<T>(LazyLock<Mutex<HashMap<usize, Arc<T>>>>);

impl<T> Table<T> {
    pub const fn new() -> Table<T> {
        Table(LazyLock::new(Mutex::default))
    }

    /// Gives an object its handle.
    pub fn insert(&self, object: Arc<T>) -> *mut c_void {
        let address = Arc::as_ptr(&object) as usize;
        self.0.lock().insert(address, object);
        address as *mut c_void
    }

    /// The object behind a handle, if it is one.
    pub fn find(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.0.lock().get(&(handle as usize)).cloned()
    }

    /// Ends a handle.
    pub fn take(&self, handle: *mut c_void) -> Option<Arc<T>> {
        self.0.lock().remove(&(handle as usize))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().values().cloned().collect()
    }
}
