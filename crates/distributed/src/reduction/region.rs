//! The memory of a bucket: one allocation with disjoint slots. Each slot is the storage of one gradient.
//!
//! A slot is an [`Allocator`] with a single block. It refuses a second request while a gradient holds the block, so
//! each gradient owns its memory exclusively: kernels write to it in place, and dropping the gradient frees the slot.
//! The allocation returns to its pool when the region and all its slots are dropped.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::{
    AddressSpace, AllocError, Allocator, Block, BlockError, Category, MemoryKind, OomReport, OwnerId,
    Request, Stats, Verdict,
};
use highwater_tensor::{Buffer, DType, Device, OpContext, Result, Shape};
use highwater_tracking::enter_path;

use crate::collective::SliceMut;

/// One allocation for data that ranks exchange.
#[derive(Debug)]
pub(crate) struct Region {
    buffer: Buffer,
    dtype: DType,
    elements: usize,
}

/// The slots of a region, one for each gradient.
pub(crate) type Blocks = Vec<Arc<dyn Allocator>>;

impl Region {
    /// Allocates a region from the device's pool, for the op `op` outside of all modules.
    pub(crate) fn new(
        op: &'static str,
        device: &Device,
        elements: usize,
        dtype: DType,
        category: Category,
    ) -> Result<Arc<Self>> {
        let _scope = enter_path(OwnerId::ROOT);
        let ctx = OpContext::create(op, device, device.default_allocator()?, category);
        let buffer = ctx.buffer(&Shape::new(&[elements])?, dtype, category)?;
        Ok(Arc::new(Self { buffer, dtype, elements }))
    }

    /// Allocates a region of gradients with one slot for each of `ranges`: disjoint ranges of elements in ascending order.
    pub(crate) fn with_blocks(
        op: &'static str,
        device: &Device,
        elements: usize,
        dtype: DType,
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Result<(Arc<Self>, Blocks)> {
        let region = Self::new(op, device, elements, dtype, Category::Gradient)?;
        let (start, width) = (region.buffer.view().storage().address(), dtype.size());
        let mut end = 0;
        let block = |range: Range<usize>| -> Arc<dyn Allocator> {
            assert!(
                end <= range.start && range.start <= range.end && range.end <= elements,
                "disjoint blocks"
            );
            end = range.end;
            Arc::new(SlotMemory {
                region: Arc::clone(&region),
                address: start + (range.start * width) as u64,
                bytes: (range.len() * width) as u64,
                is_taken: AtomicBool::new(false),
            })
        };
        let blocks = ranges.map(block).collect();
        Ok((region, blocks))
    }

    /// Returns the address of the first element.
    #[cfg(feature = "cuda")]
    pub(crate) fn address(&self) -> u64 {
        self.buffer.view().storage().address()
    }

    /// Returns the element type.
    #[cfg(feature = "cuda")]
    pub(crate) const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the elements `range` for writing; `None` if the host cannot access them.
    ///
    /// # Safety
    ///
    /// Nothing else accesses these elements while the result lives.
    pub(crate) unsafe fn slice_mut(&self, range: Range<usize>) -> Option<SliceMut<'_>> {
        assert!(range.start <= range.end && range.end <= self.elements, "within the region");
        let view = self.buffer.view();
        let storage = view.storage();
        if !storage.allocation().allocator().memory_kind().is_host_accessible() {
            return None;
        }
        let address = usize::try_from(storage.address()).ok()? + range.start * self.dtype.size();
        // Empty memory has no address. A slice needs an aligned one that is not 0.
        let count = range.len();
        let address = if count == 0 { bfc_core::DEFAULT_ALIGNMENT as usize } else { address };
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the elements lie within the buffer, which this value owns, and are initialized and aligned to 64 bytes
        // at the start of the buffer. The caller excludes other accesses.
        match self.dtype {
            // SAFETY: as above.
            DType::F32 => Some(SliceMut::F32(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })),
            // SAFETY: as above.
            DType::F64 => Some(SliceMut::F64(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })),
            // SAFETY: as above.
            DType::F16 => Some(SliceMut::F16(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })),
            DType::BF16 => {
                // SAFETY: as above.
                Some(SliceMut::BF16(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) }))
            }
            // SAFETY: as above.
            DType::U8 => Some(SliceMut::Bytes(unsafe { std::slice::from_raw_parts_mut(start, count) })),
            _ => None,
        }
    }
}

/// A slot: the memory of one gradient in a bucket.
#[derive(Debug)]
struct SlotMemory {
    region: Arc<Region>,
    address: u64,
    bytes: u64,
    /// Whether a gradient holds the block.
    is_taken: AtomicBool,
}

impl SlotMemory {
    fn pool(&self) -> &dyn Allocator {
        self.region.buffer.view().storage().allocation().allocator().as_ref()
    }
}

// SAFETY: the memory is a part of the region's block, which lives as long as this value. Slots do not overlap, and
// `is_taken` prevents two live blocks in one slot. The memory has the kind and the address space of the region's pool. It
// is initialized, like all memory of pools.
unsafe impl Allocator for SlotMemory {
    fn name(&self) -> &str {
        self.pool().name()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.pool().memory_kind()
    }

    fn address_space(&self) -> Option<AddressSpace> {
        self.pool().address_space()
    }

    fn allocate(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let fits = request.bytes == self.bytes && self.address.is_multiple_of(request.alignment.max(1));
        if !fits || self.is_taken.swap(true, Ordering::Acquire) {
            let report = OomReport::new(self.name(), request, Verdict::Exhausted);
            return Err(AllocError::OutOfMemory(Box::new(report)));
        }
        Ok(Block { address: self.address, bytes: self.bytes, ..Block::EMPTY })
    }

    unsafe fn deallocate(&self, block: Block) -> Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        if block.address != self.address || !self.is_taken.swap(false, Ordering::Release) {
            return Err(BlockError::Unknown { block });
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn tracks_sizes(&self) -> bool {
        true
    }
}
