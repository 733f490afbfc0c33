//! Compressed time: lifetimes in the fewest sections that preserve all overlaps.
//!
//! Only the moments before a free that follows an allocation matter, because the sets of live blocks are maximal there.
//! Each such moment is one section. Two blocks live together if and only if they share a section.

use super::Lifetime;

/// The sections of a set of lifetimes.
#[derive(Debug)]
pub(super) struct Sections {
    /// The first section and the end section, by block.
    pub(super) spans: Vec<(u32, u32)>,
    /// The number of sections.
    pub(super) count: u32,
}

impl Sections {
    /// Computes the sections. `lifetimes` are in order of their starts.
    pub(super) fn new(lifetimes: &[Lifetime]) -> Self {
        let mut by_end: Vec<u32> = (0..).take(lifetimes.len()).collect();
        by_end.sort_by_key(|&index| lifetimes[index as usize].end);
        let mut ends = by_end.into_iter().peekable();
        let mut spans = vec![(0, 0); lifetimes.len()];
        let mut section = 0;
        for (index, lifetime) in lifetimes.iter().enumerate() {
            let mut freed = false;
            while let Some(ended) = ends.next_if(|&ended| lifetimes[ended as usize].end <= lifetime.start) {
                spans[ended as usize].1 = section + 1;
                freed = true;
            }
            section += u32::from(freed);
            spans[index].0 = section;
        }
        for ended in ends {
            spans[ended as usize].1 = section + 1;
        }
        Self { spans, count: if lifetimes.is_empty() { 0 } else { section + 1 } }
    }

    /// Returns the sum of sizes in each section.
    pub(super) fn live(&self, sizes: &[u64]) -> Vec<u64> {
        let mut change = vec![0_i128; self.count as usize + 1];
        for (&(first, end), &size) in self.spans.iter().zip(sizes) {
            change[first as usize] += i128::from(size);
            change[end as usize] -= i128::from(size);
        }
        let mut live: i128 = 0;
        let sums = change.iter().take(self.count as usize).map(|change| {
            live += change;
            u64::try_from(live).unwrap_or(u64::MAX)
        });
        sums.collect()
    }
}
