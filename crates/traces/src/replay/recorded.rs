//! Replays the blocks of a recording, without a trace in between.

use bfc_core::{AllocError, AllocationAttributes, Allocator, Block, Bytes, Request};
use highwater_tracking::{EventKind, Recording};

use super::free;

/// The reserved bytes of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReservedBytes {
    /// The most at a time.
    pub(crate) peak: u64,
    /// After the last event.
    pub(crate) end: u64,
}

/// Allocates and frees the blocks of a recording through `allocator`, each on its stream. Frees the remaining blocks.
///
/// Where the recorded pool returned regions, for example on request of the program (`empty_cache`), the allocator
/// returns its idle ones.
///
/// # Errors
/// The first error of an allocation.
pub(crate) fn replay_recording(
    recording: &Recording,
    allocator: &dyn Allocator,
) -> Result<ReservedBytes, AllocError> {
    let mut blocks = vec![Block::EMPTY; recording.blocks().len()];
    let attributes = AllocationAttributes::no_retry();
    let mut outcome = Ok(());
    let mut count = 0;
    let mut is_returning = false;
    for event in recording.events() {
        let was_returning = std::mem::replace(&mut is_returning, false);
        match event.kind {
            EventKind::Region(number) if !recording.regions()[number as usize].taken => {
                is_returning = true;
                if let Some(pool) = allocator.as_pool().filter(|_| !was_returning) {
                    pool.trim(Bytes(0));
                }
            }
            EventKind::Alloc(number) => {
                let block = recording.block(number);
                let request =
                    Request::new(block.requested).with_attributes(attributes).with_stream(block.stream);
                match allocator.allocate(&request) {
                    Ok(allocated) => blocks[number as usize] = allocated,
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
                count = number as usize + 1;
            }
            EventKind::Free(number) => {
                let block = std::mem::replace(&mut blocks[number as usize], Block::EMPTY);
                // The pool refuses no block of its own. A second error of the same replay would add nothing.
                let _ = free(allocator, block);
            }
            _ => {}
        }
    }
    let stats = allocator.stats();
    for block in blocks.into_iter().take(count).filter(|block| *block != Block::EMPTY) {
        let _ = free(allocator, block);
    }
    outcome.map(|()| ReservedBytes { peak: stats.peak_bytes_reserved, end: stats.bytes_reserved })
}
