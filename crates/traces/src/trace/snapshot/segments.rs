//! The segments of a snapshot: the memory that PyTorch's allocator held at the end, and its blocks.

use std::collections::HashSet;

use highwater_files::lean::{self, HeldMemory};
use highwater_files::pickle::Value;

use super::fields::{Fields, Key};
use super::file::SnapshotFile;
use crate::trace::{TraceLimits, TraceProblem};

/// A segment: a range of addresses that PyTorch's allocator took from the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotSegment {
    /// The address.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The stream, as an index into [`Snapshot::streams`](super::Snapshot::streams).
    pub stream: u32,
    /// Whether it serves small requests.
    pub is_small: bool,
    /// Whether it is mapped memory of an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, by address.
    pub blocks: Vec<SegmentBlock>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentBlock {
    /// The address.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The requested bytes; 0 for a free block.
    pub requested: u64,
    /// The state.
    pub state: BlockState,
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockState {
    /// A tensor uses it.
    Live,
    /// It was freed, but another stream may still use it.
    Pending,
    /// It is free.
    Free,
}

/// The segments of one device, read one after the other.
#[derive(Debug, Default)]
pub(super) struct Segments {
    pub(super) list: Vec<SnapshotSegment>,
    /// The CUDA stream and the private pool of each.
    pub(super) streams: Vec<(u64, (u64, u64))>,
    /// The live blocks with the dictionary that has their stack.
    pub(super) live: Vec<LiveBlock>,
}

/// A block that is live at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveBlock {
    pub(super) block: SegmentBlock,
    /// The segment's index.
    pub(super) segment: u32,
    /// The dictionary with its stack.
    pub(super) stacked: Value,
}

/// Reads the segments of a device. Early snapshots do not name the device, and have only one.
pub(super) fn read(
    file: &SnapshotFile<'_>,
    device: u32,
    limits: &TraceLimits,
    memory: &mut HeldMemory,
) -> Result<Segments, TraceProblem> {
    let mut segments = Segments::default();
    let mut blocks_seen = 0;
    // A pickle can refer to one list from many segments. Each list is read once, so that time is linear in the size
    // of the file.
    let mut lists = HashSet::new();
    for &value in file.segments().unwrap_or_default() {
        let fields = Fields::of(file.heap, value, "a segment")?;
        if fields.number(Key::Device).is_some_and(|number| number != u64::from(device)) {
            continue;
        }
        let Some(start) = fields.number(Key::Address) else { continue };
        let list = fields.list(Key::Blocks).unwrap_or_default();
        if list.is_empty() || !lists.insert(list.as_ptr()) {
            continue;
        }
        let index = segments.list.len() as u32;
        let mut blocks = Vec::new();
        let mut address = start;
        for &value in list {
            blocks_seen += 1;
            if blocks_seen > limits.events {
                return Err(TraceProblem::TooMany { what: "events", limit: limits.events });
            }
            let block = Fields::of(file.heap, value, "a block")?;
            let found = block_at(address, &block);
            memory.charge(lean::cost::<SegmentBlock>() + lean::cost::<LiveBlock>())?;
            if found.state != BlockState::Free {
                // Snapshots before PyTorch 2.1 have the stack in the last entry of a history.
                let history = block.list(Key::History).and_then(|history| history.last()).copied();
                let stacked = history.unwrap_or(value);
                lean::push(&mut segments.live, LiveBlock { block: found, segment: index, stacked });
            }
            lean::push(&mut blocks, found);
            address = address.saturating_add(found.bytes);
        }
        let bytes = fields.number(Key::TotalSize).unwrap_or(address - start);
        let pool = fields.pair(Key::SegmentPoolId).unwrap_or_default();
        memory.charge(lean::cost::<SnapshotSegment>() + lean::cost::<(u64, (u64, u64))>())?;
        lean::push(&mut segments.streams, (fields.number(Key::Stream).unwrap_or(0), pool));
        lean::push(
            &mut segments.list,
            SnapshotSegment {
                address: start,
                bytes,
                stream: 0,
                is_small: fields.text(Key::SegmentType) == Some("small"),
                is_expandable: fields.truth(Key::IsExpandable),
                blocks,
            },
        );
    }
    Ok(segments)
}

fn block_at(address: u64, block: &Fields<'_>) -> SegmentBlock {
    let bytes = block.number(Key::Size).unwrap_or(0);
    let state = match block.text(Key::State) {
        Some("active_allocated") => BlockState::Live,
        // `active_pending_free`, or `active_awaiting_free` in the documentation.
        Some(state) if state.starts_with("active") => BlockState::Pending,
        _ => BlockState::Free,
    };
    let requested = match state {
        BlockState::Free => 0,
        _ => block.number(Key::RequestedSize).unwrap_or(bytes),
    };
    SegmentBlock { address, bytes, requested, state }
}
