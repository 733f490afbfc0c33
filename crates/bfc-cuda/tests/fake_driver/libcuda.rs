//! A fake CUDA driver library, which tests load on machines without CUDA.
//!
//! It has two devices of 1 GiB and the functions that bfc-cuda calls. Like the real driver, it checks contexts, addresses
//! and handles. Work is executed at once, except that copies from pinned memory end as late as possible: when a caller
//! waits, or the device has other work. `fake_cuda_live` counts live objects.
//!
//! Environment variables change its behavior:
//!
//! - `FAKE_CUDA_INIT`, `FAKE_CUDA_RETAIN` and `FAKE_CUDA_RECORD`: the status of starting, of creating a context, and of
//!   recording an event.
//! - `FAKE_CUDA_DEVICES`: the number of devices. `FAKE_CUDA_VERSION` and `FAKE_CUDA_CAPABILITY`: 13000 and 90 by default.
//! - `FAKE_CUDA_MAPS=0`: no virtual memory management. `FAKE_CUDA_NO_GRAPHS`: no graphs. `FAKE_CUDA_FULL`: no memory.
//!
//! With `--cfg incomplete` it lacks a function. Kernels, products and graphs are in `computing.rs`.

#![allow(non_snake_case, clippy::missing_safety_doc)]

mod computing;
mod functions;

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use functions::functions;

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;

const TOTAL: usize = 1 << 30;
const BASE: u64 = 0x7f00_0000_0000;

thread_local! {
    /// The context current on this thread: the device's number plus one, or 0.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Allocated device memory: size and device, by address.
static DEVICE: Mutex<BTreeMap<u64, (usize, usize)>> = Mutex::new(BTreeMap::new());
/// Allocated pinned memory: size, by address.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
/// The number of live contexts.
static CONTEXTS: AtomicUsize = AtomicUsize::new(0);

fn setting(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

fn devices() -> c_int {
    setting("FAKE_CUDA_DEVICES").unwrap_or(2) as c_int
}

fn context() -> Result<usize, u32> {
    match CURRENT.get() {
        0 => Err(INVALID_CONTEXT),
        context => Ok(context),
    }
}

/// Returns a status and writes the value to the caller's address.
unsafe fn answer<T>(place: *mut T, value: Result<T, u32>) -> u32 {
    match value {
        Ok(value) => {
            // SAFETY: callers name a place for the answer, as the driver's interface asks.
            unsafe { place.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

functions! {
    cuInit(_flags: c_uint) {
        setting("FAKE_CUDA_INIT").unwrap_or(SUCCESS)
    }
    cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(version, Ok(setting("FAKE_CUDA_VERSION").unwrap_or(13_000) as c_int)) }
    }
    cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(count, Ok(devices())) }
    }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(device, if ordinal < devices() { Ok(ordinal) } else { Err(INVALID_DEVICE) }) }
    }
    cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) {
        let text = c"Fake Device";
        if text.count_bytes() >= room as usize {
            return INVALID_VALUE;
        }
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr(), text.count_bytes() + 1) };
        SUCCESS
    }
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        // Compute capability and virtual memory management; other attributes are 0.
        let capability = setting("FAKE_CUDA_CAPABILITY").unwrap_or(90) as c_int;
        let known = match attribute {
            75 => capability / 10,
            76 => capability % 10,
            102 => setting("FAKE_CUDA_MAPS").unwrap_or(1) as c_int,
            _ => 0,
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(value, Ok(known)) }
    }
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(bytes, Ok(TOTAL)) }
    }
    cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        match setting("FAKE_CUDA_RETAIN") {
            None | Some(SUCCESS) => CONTEXTS.fetch_add(1, Ordering::Relaxed),
            Some(code) => return code,
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(context, Ok(device as usize + 1)) }
    }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        CONTEXTS.fetch_sub(1, Ordering::Relaxed);
        SUCCESS
    }
    cuCtxGetCurrent(context: *mut usize) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(context, Ok(CURRENT.get())) }
    }
    cuCtxSetCurrent(context: usize) {
        CURRENT.set(context);
        SUCCESS
    }
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let used = context().map(|context| {
            let live = DEVICE.lock().unwrap();
            live.values().filter(|(_, owner)| *owner == context).map(|(bytes, _)| bytes).sum::<usize>()
        });
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        let code = unsafe { answer(free, used.map(|used| TOTAL - used)) };
        if code != SUCCESS {
            return code;
        }
        // SAFETY: as above.
        unsafe { answer(total, Ok(TOTAL)) }
    }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let allocate = |context| {
            let mut live = DEVICE.lock().unwrap();
            let used: usize = live.values().filter(|(_, owner)| *owner == context).map(|(bytes, _)| bytes).sum();
            match bytes {
                0 => Err(INVALID_VALUE),
                _ if setting("FAKE_CUDA_FULL").is_some() => Err(OUT_OF_MEMORY),
                bytes if bytes > TOTAL - used => Err(OUT_OF_MEMORY),
                bytes => {
                    let end = live.last_key_value().map_or(BASE, |(address, (bytes, _))| address + *bytes as u64);
                    let address = end.next_multiple_of(512);
                    live.insert(address, (bytes, context));
                    Ok(address)
                }
            }
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(address, context().and_then(allocate)) }
    }
    cuMemFree_v2(address: u64) {
        match (context(), DEVICE.lock().unwrap().remove(&address)) {
            (Err(code), _) => code,
            (Ok(_), None) => INVALID_VALUE,
            (Ok(_), Some(_)) => SUCCESS,
        }
    }
    cuMemFreeHost(pointer: *mut c_void) {
        let _ = others(|_, _| Ok(()));
        match (context(), PINNED.lock().unwrap().remove(&pointer.addr())) {
            (Err(code), _) => code,
            (Ok(_), None) => INVALID_VALUE,
            (Ok(_), Some(bytes)) => {
                // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
                unsafe { dealloc(pointer.cast(), layout(bytes)) };
                SUCCESS
            }
        }
    }
    cuGetErrorName(_code: u32, _text: *mut *const c_char) {
        INVALID_VALUE
    }
    cuGetErrorString(_code: u32, _text: *mut *const c_char) {
        INVALID_VALUE
    }
}

/// State other than plain allocations: virtual memory, streams, events and contents.
struct Others {
    next: u64,
    /// Sizes of reserved ranges.
    ranges: BTreeMap<u64, usize>,
    /// Sizes of handles that were not released.
    handles: BTreeMap<u64, usize>,
    /// Sizes of mappings, and whether they may be accessed.
    mappings: BTreeMap<u64, (usize, bool)>,
    streams: BTreeMap<usize, usize>,
    events: BTreeMap<usize, usize>,
    /// Pages of device memory that were written.
    contents: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    /// Unfinished copies from pinned memory: to, from, bytes.
    pending: Vec<(u64, usize, usize)>,
}

static OTHERS: Mutex<Others> = Mutex::new(Others {
    next: 0,
    ranges: BTreeMap::new(),
    handles: BTreeMap::new(),
    mappings: BTreeMap::new(),
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    contents: BTreeMap::new(),
    pending: Vec::new(),
});

/// The number of live objects, including contexts and a current one.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_live() -> usize {
    let others = OTHERS.lock().unwrap();
    let memory = DEVICE.lock().unwrap().len() + PINNED.lock().unwrap().len();
    let mapped = others.ranges.len() + others.handles.len() + others.mappings.len();
    let work = others.streams.len() + others.events.len() + computing::live();
    memory + mapped + work + CONTEXTS.load(Ordering::Relaxed) + CURRENT.get()
}

/// The peak of pinned memory, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_most_pinned() -> usize {
    MOST_PINNED.load(Ordering::Relaxed)
}

static MOST_PINNED: AtomicUsize = AtomicUsize::new(0);

const PAGE: u64 = 4096;
const GRANULARITY: usize = 2 << 20;
const RANGES: u64 = 0x3000_0000_0000;

/// Makes a call that needs a context, after all pending copies.
fn others<T>(call: impl FnOnce(&mut Others, usize) -> Result<T, u32>) -> Result<T, u32> {
    let context = context()?;
    let others = &mut *OTHERS.lock().unwrap();
    for (to, from, bytes) in std::mem::take(&mut others.pending) {
        // SAFETY: callers leave page-locked memory as it is until the copy has ended.
        let source = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
        others.put(to, source);
    }
    call(others, context)
}

fn code(outcome: Result<(), u32>) -> u32 {
    outcome.err().unwrap_or(SUCCESS)
}

fn whole(bytes: usize) -> Result<usize, u32> {
    if bytes > 0 && bytes.is_multiple_of(GRANULARITY) { Ok(bytes) } else { Err(INVALID_VALUE) }
}

impl Others {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Writes device memory.
    pub(crate) fn put(&mut self, mut to: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let page = self.contents.entry(to / PAGE).or_insert_with(|| Box::new([0xab; PAGE as usize]));
            let at = (to % PAGE) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(PAGE as usize - at));
            page[at..at + now.len()].copy_from_slice(now);
            (to, bytes) = (to + now.len() as u64, later);
        }
    }

    /// Reads device memory.
    pub(crate) fn get(&self, mut from: u64, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let at = (from % PAGE) as usize;
            let now = bytes.len().min(PAGE as usize - at);
            let (now, later) = bytes.split_at_mut(now);
            match self.contents.get(&(from / PAGE)) {
                Some(page) => now.copy_from_slice(&page[at..at + now.len()]),
                None => now.fill(0xab),
            }
            (from, bytes) = (from + now.len() as u64, later);
        }
    }

    /// Whether accessible device memory covers the range.
    fn check(&self, address: u64, bytes: usize) -> Result<(), u32> {
        let end = address + bytes as u64;
        let allocated = DEVICE.lock().unwrap();
        let before = allocated.range(..=address).next_back();
        let mut at = address;
        if before.is_some_and(|(start, (size, _))| start + *size as u64 >= end) {
            return Ok(());
        }
        while at < end {
            match self.mappings.range(..=at).next_back() {
                Some((start, (size, true))) if start + *size as u64 > at => at = start + *size as u64,
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }
}

functions! {
    cuMemGetAllocationGranularity(bytes: *mut usize, _properties: *const c_void, _option: c_uint) {
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(bytes, Ok(GRANULARITY)) }
    }
    cuMemAddressReserve(address: *mut u64, bytes: usize, _alignment: usize, _hint: u64, _flags: u64) {
        let reserve = |others: &mut Others, _| {
            let bytes = whole(bytes)?;
            let end = others.ranges.last_key_value().map_or(RANGES, |(start, bytes)| start + *bytes as u64);
            others.ranges.insert(end, bytes);
            Ok(end)
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(address, others(reserve)) }
    }
    cuMemAddressFree(address: u64, bytes: usize) {
        code(others(|others, _| {
            let mapped = others.mappings.range(address..address + bytes as u64).next().is_some();
            match others.ranges.get(&address) {
                Some(size) if *size == bytes && !mapped => others.ranges.remove(&address),
                _ => return Err(INVALID_VALUE),
            };
            Ok(())
        }))
    }
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_int, _flags: u64) {
        let create = |others: &mut Others, context: usize| {
            // The kind of memory, the kind of handle, the kind of location and its number.
            // SAFETY: callers pass a description that starts with four integers.
            let properties = unsafe { properties.cast::<[c_int; 4]>().read() };
            if properties != [1, 0, 1, context as c_int - 1] {
                return Err(INVALID_VALUE);
            }
            let used: usize = others.mappings.values().map(|(bytes, _)| bytes).sum();
            if whole(bytes)? > TOTAL - used {
                return Err(OUT_OF_MEMORY);
            }
            let number = others.number();
            others.handles.insert(number, bytes);
            Ok(number)
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(handle, others(create)) }
    }
    cuMemRelease(handle: u64) {
        code(others(|others, _| others.handles.remove(&handle).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) {
        code(others(|others, _| {
            let inside = others.ranges.range(..=address).next_back();
            let end = address + bytes as u64;
            let inside = inside.is_some_and(|(start, size)| end <= start + *size as u64);
            let free = others.mappings.range(..end).next_back();
            let free = free.is_none_or(|(start, (size, _))| start + *size as u64 <= address);
            if !inside || !free || offset != 0 || others.handles.get(&handle) != Some(&bytes) {
                return Err(INVALID_VALUE);
            }
            others.mappings.insert(address, (bytes, false));
            Ok(())
        }))
    }
    cuMemUnmap(address: u64, bytes: usize) {
        code(others(|others, _| match others.mappings.get(&address) {
            Some((size, _)) if *size == bytes => {
                others.mappings.remove(&address);
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }))
    }
    cuMemSetAccess(address: u64, bytes: usize, access: *const c_int, count: usize) {
        code(others(|others, context| {
            // SAFETY: callers pass a description of three integers: the kind of place, its number, and the access.
            let access = unsafe { access.cast::<[c_int; 3]>().read() };
            if count != 1 || access != [1, context as c_int - 1, 3] {
                return Err(INVALID_VALUE);
            }
            for (_, (_, accessible)) in others.mappings.range_mut(address..address + bytes as u64) {
                *accessible = true;
            }
            others.check(address, bytes)
        }))
    }
    cuStreamCreate(stream: *mut usize, flags: c_uint) {
        let create = |others: &mut Others, context| {
            let number = others.number() as usize;
            others.streams.insert(number, context);
            if flags == 1 { Ok(number) } else { Err(INVALID_VALUE) }
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(stream, others(create)) }
    }
    cuStreamDestroy_v2(stream: usize) {
        code(others(|others, _| others.streams.remove(&stream).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        code(others(|others, _| {
            let known = others.streams.contains_key(&stream) && others.events.contains_key(&event);
            if known { Ok(()) } else { Err(INVALID_VALUE) }
        }))
    }
    cuEventCreate(event: *mut usize, flags: c_uint) {
        let create = |others: &mut Others, context| {
            let number = others.number() as usize;
            others.events.insert(number, context);
            if flags == 2 { Ok(number) } else { Err(INVALID_VALUE) }
        };
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(event, others(create)) }
    }
    cuEventDestroy_v2(event: usize) {
        code(others(|others, _| others.events.remove(&event).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuEventRecord(event: usize, stream: usize) {
        code(others(|others, _| {
            match (setting("FAKE_CUDA_RECORD"), others.events.get(&event), others.streams.get(&stream)) {
                (None | Some(SUCCESS), Some(event), Some(stream)) if event == stream => Ok(()),
                (Some(code), ..) if code != SUCCESS => Err(code),
                _ => Err(INVALID_VALUE),
            }
        }))
    }
    cuEventQuery(event: usize) {
        code(others(|others, _| others.events.get(&event).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuEventSynchronize(event: usize) {
        code(others(|others, _| others.events.get(&event).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuCtxSynchronize() {
        code(context().map(|_| ()))
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: usize) {
        code(others(|others, _| {
            others.check(to, bytes)?;
            others.streams.get(&stream).ok_or(INVALID_VALUE)?;
            let pinned = PINNED.lock().unwrap();
            let block = pinned.range(..=from.addr()).next_back();
            if block.is_some_and(|(start, size)| from.addr() + bytes <= start + size) {
                others.pending.push((to, from.expose_provenance(), bytes));
                return Ok(());
            }
            // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
            let source = unsafe { std::slice::from_raw_parts(from, bytes) };
            others.put(to, source);
            Ok(())
        }))
    }
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: usize) {
        code(others(|others, _| {
            others.check(from, bytes)?;
            others.streams.get(&stream).ok_or(INVALID_VALUE)?;
            let mut source = vec![0; bytes];
            others.get(from, &mut source);
            // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
            unsafe { to.copy_from_nonoverlapping(source.as_ptr(), bytes) };
            Ok(())
        }))
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        code(others(|others, _| {
            others.check(to, bytes)?;
            others.check(from, bytes)?;
            others.streams.get(&stream).ok_or(INVALID_VALUE)?;
            let mut source = vec![0; bytes];
            others.get(from, &mut source);
            others.put(to, &source);
            Ok(())
        }))
    }
}

#[cfg(not(incomplete))]
functions! {
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        if context().is_err() {
            return INVALID_CONTEXT;
        }
        if bytes == 0 {
            return INVALID_VALUE;
        }
        if bytes > TOTAL {
            return OUT_OF_MEMORY;
        }
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        let memory = unsafe { alloc(layout(bytes)) };
        // The memory is not zero, so that callers cannot rely on it.
        unsafe { memory.write_bytes(0xcd, bytes) };
        let mut pinned = PINNED.lock().unwrap();
        pinned.insert(memory.expose_provenance(), bytes);
        MOST_PINNED.fetch_max(pinned.values().sum(), Ordering::Relaxed);
        // SAFETY: as with the real driver, callers pass places and addresses that are theirs.
        unsafe { answer(pointer, Ok(memory.cast())) }
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).unwrap()
}
