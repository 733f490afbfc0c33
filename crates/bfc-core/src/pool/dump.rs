//! Text views of a pool: one line of occupancy, and the memory log. Source of the contents: upstream's
//! `RenderOccupancy` and `DumpMemoryLog`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::info::{ChunkInfo, bin_infos};
use crate::allocator::stats::Stats;
use crate::base::memory::Span;
use crate::base::units::Bytes;
use crate::policy::bfc::bin_of;

/// Characters in the picture of a pool.
const RESOLUTION: usize = 100;

/// The pool's state to draw and describe.
#[derive(Debug)]
pub(super) struct PoolContents {
    pub(super) regions: Vec<Span>,
    pub(super) chunks: Vec<ChunkInfo>,
}

impl PoolContents {
    /// Draws the pool as [`RESOLUTION`] characters over all regions: `*` requested bytes, `x` rounding, `_` free bytes.
    /// Where items share a character, requests hide rounding, and later chunks hide earlier ones.
    pub(super) fn render_occupancy(&self) -> String {
        let total: u64 = self.regions.iter().map(|region| region.bytes).sum();
        if total == 0 {
            return "no memory held".to_owned();
        }
        let mut picture = [b'_'; RESOLUTION];
        let mut draw = |from: u64, bytes: u64, mark: u8| {
            let cell = |byte: u64| (u128::from(byte) * RESOLUTION as u128 / u128::from(total)) as usize;
            if bytes > 0 {
                picture[cell(from)..=cell(from + bytes - 1)].fill(mark);
            }
        };
        let mut before = 0;
        for (region, span) in self.regions.iter().enumerate() {
            for chunk in self.chunks.iter().filter(|chunk| chunk.region == region && chunk.in_use()) {
                let start = before + (chunk.address - span.address);
                draw(start + chunk.requested, chunk.bytes - chunk.requested, b'x');
                draw(start, chunk.requested, b'*');
            }
            before += span.bytes;
        }
        picture.iter().map(|&mark| char::from(mark)).collect()
    }

    /// Describes the pool after a failed request for `rounded` bytes. Ends with the figures in `stats`.
    pub(super) fn memory_log(&self, name: &str, rounded: u64, stats: &Stats) -> String {
        let mut log = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_log(&mut log, name, rounded, stats);
        log
    }

    fn write_log(&self, log: &mut String, name: &str, rounded: u64, stats: &Stats) -> fmt::Result {
        writeln!(log, "memory of {name}")?;
        self.write_bins(log)?;
        self.write_bin_of(log, rounded)?;
        self.write_regions(log)?;
        self.write_sizes(log)?;
        let unreserved = stats.bytes_limit.map_or(0, |limit| limit.saturating_sub(stats.bytes_reserved));
        writeln!(
            log,
            "request {}, free {}, largest free block {}, not yet reserved {}",
            Bytes(rounded),
            Bytes(stats.free_bytes()),
            Bytes(stats.largest_free_block_bytes),
            Bytes(unreserved)
        )?;
        write!(log, "{stats}")
    }

    fn write_bins(&self, log: &mut String) -> fmt::Result {
        writeln!(
            log,
            "{:>3}  {:>10}  {:>8}  {:>8}  {:>12}  {:>12}  {:>12}",
            "bin", "from", "chunks", "in use", "bytes", "in use", "requested"
        )?;
        for (index, bin) in bin_infos(&self.chunks).iter().enumerate() {
            writeln!(
                log,
                "{index:>3}  {:>10}  {:>8}  {:>8}  {:>12}  {:>12}  {:>12}",
                Bytes(bin.lower_bound),
                bin.chunks,
                bin.chunks_in_use,
                Bytes(bin.bytes),
                Bytes(bin.bytes_in_use),
                Bytes(bin.requested_in_use)
            )?;
        }
        Ok(())
    }

    /// Lists the free chunks in the bin of the request, which were too small or misaligned.
    fn write_bin_of(&self, log: &mut String, rounded: u64) -> fmt::Result {
        let bin = bin_of(rounded);
        writeln!(log, "free chunks of bin {bin}, which {} falls into:", Bytes(rounded))?;
        let in_bin = |chunk: &&ChunkInfo| !chunk.in_use() && chunk.bin == bin;
        let mut places: Vec<usize> = (0..self.chunks.len()).collect();
        places.sort_by_key(|&place| (self.chunks[place].bytes, self.chunks[place].address));
        for place in places {
            let Some(chunk) = self.chunks.get(place).filter(in_bin) else { continue };
            write!(log, "  {:#x}  {}", chunk.address, Bytes(chunk.bytes))?;
            let before = place.checked_sub(1).and_then(|place| self.chunks.get(place));
            for (side, neighbor) in [("after", before), ("before", self.chunks.get(place + 1))] {
                if let Some(neighbor) = neighbor.filter(|neighbor| neighbor.region == chunk.region) {
                    let state = if neighbor.in_use() { "in use" } else { "free" };
                    write!(log, ", {side} {} {state}", Bytes(neighbor.bytes))?;
                }
            }
            writeln!(log)?;
        }
        Ok(())
    }

    fn write_regions(&self, log: &mut String) -> fmt::Result {
        let mut region = usize::MAX;
        for chunk in &self.chunks {
            if chunk.region != region {
                region = chunk.region;
                let span = self.regions[region];
                writeln!(log, "region {region} at {:#x}, {}", span.address, Bytes(span.bytes))?;
            }
            write_chunk(log, chunk)?;
        }
        Ok(())
    }

    /// Lists the chunks in use by size.
    fn write_sizes(&self, log: &mut String) -> fmt::Result {
        let mut sizes = BTreeMap::<u64, u64>::new();
        for chunk in self.chunks.iter().filter(|chunk| chunk.in_use()) {
            *sizes.entry(chunk.bytes).or_default() += 1;
        }
        writeln!(log, "in use by size:")?;
        for (bytes, count) in sizes {
            writeln!(log, "  {count} of {}, together {}", Bytes(bytes), Bytes(bytes * count))?;
        }
        Ok(())
    }
}

fn write_chunk(log: &mut String, chunk: &ChunkInfo) -> fmt::Result {
    write!(log, "  {:#x}  {:>12}  ", chunk.address, Bytes(chunk.bytes))?;
    if chunk.in_use() {
        let (owner, category) = (chunk.tag.owner, chunk.tag.category.name());
        writeln!(log, "in use, {} requested by {owner} as {category}", Bytes(chunk.requested))
    } else if chunk.freed_at > 0 {
        writeln!(log, "free since count {}", chunk.freed_at)
    } else {
        writeln!(log, "free")
    }
}
