//! Pools of stream-ordered memory. The backend below has one for each device; all of ours share it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::counts::{POOLS, POOL_RELEASES};
use crate::device::{by_ordinal, Device};
use crate::entry::Hip;
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::handle::Table;
use crate::memory::{addr, delist, device_of, enlist};
use crate::runtime::{answer, runtime};
use crate::stream;

static TABLE: Table<Pool> = Table::new();

/// A pool.
struct Pool {
    device: &'static Device,
    /// Bytes that it keeps through a synchronization.
    threshold: AtomicU64,
}

/// At a synchronization pools give back what they hold above their thresholds.
pub fn release(device: &'static Device) {
    for pool in TABLE.all() {
        let keep = pool.threshold.load(Ordering::Relaxed);
        if pool.device.ordinal == device.ordinal && keep != u64::MAX {
            POOL_RELEASES.up();
            // What a pool cannot give back it keeps.
            let _ = runtime().backend.trim(device.ordinal, keep);
        }
    }
}

fn find(pool: hipMemPool_t) -> Hip<Arc<Pool>> {
    TABLE.find(pool).ok_or(hipErrorInvalidValue)
}

entries! {
    fn hipMemPoolCreate(call, out: *mut hipMemPool_t, properties: *const hipMemPoolProps) {
        if out.is_null() || properties.is_null() {
            return Err(hipErrorInvalidValue);
        }
        let properties = &*properties;
        let fits = properties.allocType == hipMemAllocationTypePinned
            && properties.location.type_ == hipMemLocationTypeDevice
            && properties.handleTypes == hipMemHandleTypeNone;
        if !fits {
            return Err(hipErrorInvalidValue);
        }
        let device = by_ordinal(properties.location.id)?;
        device.open()?;
        let pool = Pool { device, threshold: AtomicU64::new(0) };
        POOLS.up();
        call.give(out, TABLE.insert(Arc::new(pool)))
    }

    fn hipMemPoolDestroy(call, pool: hipMemPool_t) {
        TABLE.take(pool).ok_or(hipErrorInvalidValue)?;
        POOLS.down();
        Ok(())
    }

    fn hipMemPoolSetAttribute(call, pool: hipMemPool_t, attribute: hipMemPoolAttr, value: *mut c_void) {
        if attribute != hipMemPoolAttrReleaseThreshold || value.is_null() {
            return Err(hipErrorInvalidValue);
        }
        find(pool)?.threshold.store(*value.cast::<u64>(), Ordering::Relaxed);
        Ok(())
    }

    fn hipMemPoolSetAccess(call, pool: hipMemPool_t, access: *const hipMemAccessDesc, count: usize) {
        let pool = find(pool)?;
        if access.is_null() {
            return Err(hipErrorInvalidValue);
        }
        for access in std::slice::from_raw_parts(access, count) {
            let device = by_ordinal(access.location.id)?;
            if access.location.type_ != hipMemLocationTypeDevice || device.ordinal == pool.device.ordinal {
                return Err(hipErrorInvalidValue);
            }
        }
        Ok(())
    }

    fn hipMemPoolTrimTo(call, pool: hipMemPool_t, keep: usize) {
        let pool = find(pool)?;
        answer(runtime().backend.trim(pool.device.ordinal, keep as u64))
    }

    /// In the order of a stream of the pool's device.
    fn hipMallocFromPoolAsync(call, out: *mut *mut c_void, bytes: usize, pool: hipMemPool_t, on: hipStream_t) {
        let (pool, stream) = (find(pool)?, stream::find(on)?);
        let device = pool.device;
        if out.is_null() || device.ordinal != stream.device.ordinal {
            return Err(hipErrorInvalidValue);
        }
        if bytes == 0 {
            out.write(std::ptr::null_mut());
            return Ok(());
        }
        let mut address = None;
        stream.queue(|| {
            address = Some(runtime().backend.alloc_async(device.ordinal, stream.raw, bytes as u64)?);
            Ok(())
        })?;
        let address = address.ok_or(hipErrorStreamCaptureUnsupported)?;
        enlist(address, bytes, device);
        call.give(out, address.as_ptr())
    }

    fn hipFreeAsync(call, address: *mut c_void, on: hipStream_t) {
        let stream = stream::find(on)?;
        if address.is_null() {
            return Err(hipErrorInvalidValue);
        }
        let device = device_of(address)?;
        if device.ordinal != stream.device.ordinal {
            return Err(hipErrorInvalidValue);
        }
        // Off the books first: the backend may hand the address out again at once.
        delist(address);
        stream.queue(|| runtime().backend.free_async(device.ordinal, stream.raw, addr(address)))
    }
}
