//! Third-party allocators. All of them round sizes to granules of 256 bytes, as allocators of device memory
//! require.

use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;

use gpu_alloc::{Config, GpuAllocator, MemoryBlock, UsageFlags};
use gpu_alloc_types as types;
use talc::{ErrOnOom, Span, Talc};

use crate::peer::Peer;

const GRANULE: u64 = 256;

fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE)
}

/// `offset-allocator`: two-level segregated good fit.
pub struct Offset(offset_allocator::Allocator<u32>);

impl Peer for Offset {
    type Handle = offset_allocator::Allocation<u32>;

    fn new(capacity: u64, blocks: u32) -> Self {
        let granules = u32::try_from(capacity / GRANULE).unwrap_or(u32::MAX);
        // A node for each block and for each gap between two.
        Self(offset_allocator::Allocator::with_max_allocs(granules, blocks * 2 + 16))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Handle> {
        self.0.allocate(granules(bytes) as u32)
    }

    #[inline]
    fn free(&mut self, handle: Self::Handle) {
        self.0.free(handle);
    }
}

/// `range-alloc`: exact best fit by linear scan.
pub struct RangeAlloc(range_alloc::RangeAllocator<u64>);

impl Peer for RangeAlloc {
    type Handle = Range<u64>;

    fn new(capacity: u64, _: u32) -> Self {
        Self(range_alloc::RangeAllocator::new(0..capacity / GRANULE))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Range<u64>> {
        self.0.allocate_range(granules(bytes)).ok()
    }

    #[inline]
    fn free(&mut self, range: Range<u64>) {
        self.0.free_range(range);
    }
}

/// VMA's virtual block, through `vk-mem`; `MIN_MEMORY` chooses the tightest fit.
pub struct Vma<const MIN_MEMORY: bool>(vk_mem::VirtualBlock);

impl<const MIN_MEMORY: bool> Peer for Vma<MIN_MEMORY> {
    type Handle = vk_mem::VirtualAllocation;

    fn new(capacity: u64, _: u32) -> Self {
        let info = vk_mem::VirtualBlockCreateInfo {
            size: capacity,
            flags: vk_mem::VirtualBlockCreateFlags::empty(),
            allocation_callbacks: None,
        };
        Self(vk_mem::VirtualBlock::new(info).expect("a virtual block needs no device"))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Handle> {
        let flags = match MIN_MEMORY {
            true => {
                vk_mem::VirtualAllocationCreateFlags::VMA_VIRTUAL_ALLOCATION_CREATE_STRATEGY_MIN_MEMORY_BIT
            }
            false => vk_mem::VirtualAllocationCreateFlags::empty(),
        };
        let info = vk_mem::VirtualAllocationCreateInfo {
            size: granules(bytes) * GRANULE,
            alignment: GRANULE,
            user_data: 0,
            flags,
        };
        // SAFETY: the block lives as long as its allocations are used.
        unsafe { self.0.allocate(info) }.ok().map(|(allocation, _)| allocation)
    }

    #[inline]
    fn free(&mut self, mut allocation: Self::Handle) {
        // SAFETY: the allocation came from this block and is freed once.
        unsafe { self.0.free(&mut allocation) };
    }
}

impl<const MIN_MEMORY: bool> Drop for Vma<MIN_MEMORY> {
    fn drop(&mut self) {
        // SAFETY: no allocation is used afterwards.
        unsafe { self.0.clear() };
    }
}

/// Real memory for the allocators that keep their headers in it.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(capacity: u64) -> Self {
        let layout = Layout::from_size_align(capacity as usize, 4096).expect("a sound layout");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { System.alloc(layout) }).expect("address space for the pool");
        Self { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it came from the system allocator with this layout.
        unsafe { System.dealloc(self.start.as_ptr(), self.layout) };
    }
}

fn layout_of(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, GRANULE as usize).expect("a sound layout")
}

/// `rlsf`: TLSF with headers in the memory, 256-byte alignment.
pub struct Rlsf {
    tlsf: rlsf::Tlsf<'static, u32, u32, 28, 32>,
    _memory: Memory,
}

impl Peer for Rlsf {
    type Handle = NonNull<u8>;

    fn new(capacity: u64, _: u32) -> Self {
        let memory = Memory::new(capacity);
        let mut tlsf = rlsf::Tlsf::new();
        // SAFETY: the memory lives as long as the allocator, which is dropped first.
        let pool: &'static mut [MaybeUninit<u8>] =
            unsafe { std::slice::from_raw_parts_mut(memory.start.as_ptr().cast(), memory.layout.size()) };
        tlsf.insert_free_block(pool);
        Self { tlsf, _memory: memory }
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<NonNull<u8>> {
        self.tlsf.allocate(layout_of(bytes))
    }

    #[inline]
    fn free(&mut self, block: NonNull<u8>) {
        // SAFETY: the block came from this allocator with this alignment and is freed once.
        unsafe { self.tlsf.deallocate(block, GRANULE as usize) };
    }
}

/// `talc`: best fit among size bins, with tags in the memory.
pub struct TalcPeer {
    talc: Talc<ErrOnOom>,
    _memory: Memory,
}

impl Peer for TalcPeer {
    type Handle = (NonNull<u8>, u64);

    fn new(capacity: u64, _: u32) -> Self {
        let memory = Memory::new(capacity);
        let mut talc = Talc::new(ErrOnOom);
        // SAFETY: the memory lives as long as the allocator, its only user.
        unsafe { talc.claim(Span::from_base_size(memory.start.as_ptr(), memory.layout.size())) }
            .expect("room for talc's own bins");
        Self { talc, _memory: memory }
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Handle> {
        // SAFETY: the size is not 0.
        unsafe { self.talc.malloc(layout_of(bytes)) }.ok().map(|block| (block, bytes))
    }

    #[inline]
    fn free(&mut self, (block, bytes): Self::Handle) {
        // SAFETY: the block came from this allocator with this layout and is freed once.
        unsafe { self.talc.free(block, layout_of(bytes)) };
    }
}

/// `gpu-alloc` over a simulated device that only counts.
pub struct GpuAlloc {
    allocator: GpuAllocator<u64>,
    device: Device,
}

/// A device with one memory type and no memory.
struct Device;

impl types::MemoryDevice<u64> for Device {
    unsafe fn allocate_memory(
        &self,
        size: u64,
        _: u32,
        _: types::AllocationFlags,
    ) -> Result<u64, types::OutOfMemory> {
        Ok(size)
    }

    unsafe fn deallocate_memory(&self, _: u64) {}

    unsafe fn map_memory(&self, _: &mut u64, _: u64, _: u64) -> Result<NonNull<u8>, types::DeviceMapError> {
        Err(types::DeviceMapError::MapFailed)
    }

    unsafe fn unmap_memory(&self, _: &mut u64) {}

    unsafe fn invalidate_memory_ranges(
        &self,
        _: &[types::MappedMemoryRange<'_, u64>],
    ) -> Result<(), types::OutOfMemory> {
        Ok(())
    }

    unsafe fn flush_memory_ranges(
        &self,
        _: &[types::MappedMemoryRange<'_, u64>],
    ) -> Result<(), types::OutOfMemory> {
        Ok(())
    }
}

impl Peer for GpuAlloc {
    type Handle = MemoryBlock<u64>;

    fn new(capacity: u64, _: u32) -> Self {
        let properties = types::DeviceProperties {
            memory_types: vec![types::MemoryType {
                heap: 0,
                props: types::MemoryPropertyFlags::DEVICE_LOCAL,
            }]
            .into(),
            memory_heaps: vec![types::MemoryHeap { size: capacity }].into(),
            max_memory_allocation_count: u32::MAX,
            max_memory_allocation_size: u64::MAX,
            non_coherent_atom_size: GRANULE,
            buffer_device_address: false,
        };
        Self { allocator: GpuAllocator::new(Config::i_am_prototyping(), properties), device: Device }
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Handle> {
        let request = gpu_alloc::Request {
            size: granules(bytes) * GRANULE,
            align_mask: GRANULE - 1,
            usage: UsageFlags::FAST_DEVICE_ACCESS,
            memory_types: 1,
        };
        // SAFETY: the device is the only one this allocator ever sees.
        unsafe { self.allocator.alloc(&self.device, request) }.ok()
    }

    #[inline]
    fn free(&mut self, block: Self::Handle) {
        // SAFETY: the block came from this allocator and device and is freed once.
        unsafe { self.allocator.dealloc(&self.device, block) };
    }
}

impl Drop for GpuAlloc {
    fn drop(&mut self) {
        // SAFETY: no block is live.
        unsafe { self.allocator.cleanup(&self.device) };
    }
}
