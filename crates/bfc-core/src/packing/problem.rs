//! A packing problem in whole granules and compressed time, and the orders of its blocks.

use super::sections::Sections;

/// The blocks to place: sizes in whole granules, and lifetimes.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) sizes: Vec<u64>,
    pub(super) sections: Sections,
    /// A lower bound on the bytes of any placement.
    pub(super) lower_bound: u64,
}

/// Offsets by block, and the capacity.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets {
    pub(super) offsets: Vec<u64>,
    pub(super) capacity: u64,
}

impl Offsets {
    pub(super) fn of(offsets: Vec<u64>, sizes: &[u64]) -> Self {
        let capacity = offsets.iter().zip(sizes).map(|(offset, size)| offset + size).max().unwrap_or(0);
        Self { offsets, capacity }
    }
}

/// The sort order of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Largest first; longest-lived among equals.
    Size,
    /// Longest-lived first; largest among equals.
    Lifetime,
    /// Largest product of size and lifetime first.
    Area,
    /// Fullest sections first, then by area.
    CrowdArea,
    /// Fullest sections first, then by lifetime and size.
    CrowdLifetime,
}

impl Order {
    /// All orders, in the order in which searches try them.
    pub(super) const ALL: [Self; 5] =
        [Self::CrowdArea, Self::CrowdLifetime, Self::Lifetime, Self::Area, Self::Size];

    /// Returns the blocks in this order.
    pub(super) fn of(self, problem: &Problem) -> Vec<u32> {
        let sections = &problem.sections;
        let by_crowd = matches!(self, Self::CrowdArea | Self::CrowdLifetime);
        let live = if by_crowd { sections.live(&problem.sizes) } else { Vec::new() };
        let crowd = RangeMax::new(live);
        let mut keyed: Vec<(u128, u128, u32)> = (0..)
            .zip(sections.spans.iter().zip(&problem.sizes))
            .map(|(block, (&span, &size))| {
                let (size, length) = (u128::from(size), u128::from(span.1 - span.0));
                let (first, second) = match self {
                    Self::Size => (size, length),
                    Self::Lifetime => (length, size),
                    Self::Area => (size * length, size),
                    Self::CrowdArea => (u128::from(crowd.of(span)), size * length),
                    Self::CrowdLifetime => (u128::from(crowd.of(span)), (length << 64) | size),
                };
                (first, second, block)
            })
            .collect();
        keyed.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then(a.2.cmp(&b.2)));
        keyed.into_iter().map(|(_, _, block)| block).collect()
    }
}

/// The maximum of a range of values, by a table of ranges with power-of-two lengths.
struct RangeMax(Vec<Vec<u64>>);

impl RangeMax {
    fn new(values: Vec<u64>) -> Self {
        let mut table = vec![values];
        let mut half = 1;
        while let Some(row) = table.last().filter(|row| row.len() > half) {
            let next = row.iter().zip(&row[half..]).map(|(a, b)| *a.max(b)).collect();
            table.push(next);
            half *= 2;
        }
        Self(table)
    }

    fn of(&self, (first, end): (u32, u32)) -> u64 {
        let (first, end) = (first as usize, end as usize);
        let level = (end - first).ilog2() as usize;
        let row = self.0.get(level);
        let at = |index: usize| row.and_then(|row| row.get(index)).copied().unwrap_or(0);
        at(first).max(at(end - (1 << level)))
    }
}
