//! The pieces of blocks in sections, for greedy placement.

use super::Lifetime;
use super::greedy::Offsets;
use super::occupancy::Occupancy;
use super::pieces::Piece;
use super::sections::Sections;

/// A piece of a block.
#[derive(Clone, Copy, Debug)]
struct Part {
    span: (u32, u32),
    low: u64,
    high: u64,
}

/// Blocks of which some are aligned or have gaps.
#[derive(Debug)]
pub(super) struct Shapes {
    /// The parts of all blocks, in block order.
    parts: Vec<Part>,
    /// By block: the start of its parts in `parts`, followed by the end of all parts.
    first: Vec<u32>,
    /// By block: the alignment of its offset.
    alignments: Vec<u64>,
}

impl Shapes {
    /// Returns the shapes of `blocks` blocks, and the range of sections in which each lives.
    pub(super) fn new(pieces: &[Piece], blocks: usize) -> (Self, Sections) {
        let lifetime = |piece: &Piece| Lifetime { bytes: 1, start: piece.start, end: piece.end };
        let Sections { spans, count } = Sections::new(&pieces.iter().map(lifetime).collect::<Vec<_>>());
        let mut placed: Vec<(&Piece, (u32, u32))> = pieces.iter().zip(spans).collect();
        placed.sort_by_key(|(piece, _)| piece.block);
        let mut shapes =
            Self { parts: Vec::with_capacity(placed.len()), first: vec![0], alignments: Vec::new() };
        // A block that never occupies anything has no sections.
        let mut hulls = vec![(0, 1); blocks];
        let mut placed = placed.into_iter().peekable();
        for (block, hull) in (0..).zip(&mut hulls) {
            let mut alignment = 1;
            let mut span: Option<(u32, u32)> = None;
            while let Some((piece, of_piece)) = placed.next_if(|(piece, _)| piece.block == block) {
                shapes.parts.push(Part { span: of_piece, low: piece.low, high: piece.high });
                alignment = piece.alignment;
                span = Some(span.map_or(of_piece, |span| (span.0.min(of_piece.0), span.1.max(of_piece.1))));
            }
            *hull = span.unwrap_or(*hull);
            shapes.first.push(shapes.parts.len() as u32);
            shapes.alignments.push(alignment);
        }
        (shapes, Sections { spans: hulls, count: count.max(1) })
    }

    fn parts(&self, block: u32) -> &[Part] {
        let block = block as usize;
        &self.parts[self.first[block] as usize..self.first[block + 1] as usize]
    }

    /// Returns the lowest aligned offset at which all parts of the block are free; any offset once the occupancy has
    /// made more than `most_steps`.
    pub(super) fn lowest(&self, block: u32, most_steps: u64, occupancy: &mut Occupancy) -> u64 {
        let (parts, alignment) = (self.parts(block), self.alignments[block as usize]);
        let mut offset: u64 = 0;
        // Each blocked part moves the offset up. The search ends when all parts agree in a row.
        let (mut agreed, mut index) = (0, 0);
        while agreed < parts.len() && occupancy.steps() <= most_steps {
            let Part { span, low, high } = parts[index];
            let free = occupancy.lowest(span, offset + low, high - low) - low;
            let aligned = free.next_multiple_of(alignment);
            agreed = if aligned == offset { agreed + 1 } else { usize::from(aligned == free) };
            offset = aligned;
            index = (index + 1) % parts.len();
        }
        offset
    }

    /// Stacks all blocks: valid for any lifetimes.
    pub(super) fn stacked(&self, sizes: &[u64]) -> Offsets {
        let mut end: u64 = 0;
        let next = |(block, &size): (u32, &u64)| {
            if self.parts(block).is_empty() {
                return 0;
            }
            let offset = end.next_multiple_of(self.alignments[block as usize]);
            end = offset + size;
            offset
        };
        Offsets::of((0..).zip(sizes).map(next).collect(), sizes)
    }

    /// Occupies the bytes of all parts of the block at `offset`.
    pub(super) fn take(&self, block: u32, offset: u64, occupancy: &mut Occupancy) {
        for &Part { span, low, high } in self.parts(block) {
            occupancy.take(span, offset + low, offset + high);
        }
    }
}
