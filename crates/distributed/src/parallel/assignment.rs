//! Which gradients share a bucket, and which rank owns which parameter: numbers only.

use std::ops::Range;

use highwater_tensor::DType;

/// The alignment of gradients within a bucket, in bytes: that of the pools.
const ALIGNMENT: usize = bfc_core::DEFAULT_ALIGNMENT as usize;

/// The size of the first bucket, in bytes. It is small so that the first sum starts early.
const FIRST_BYTES: usize = 1 << 20;

/// The size of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) elements: usize,
    /// The element type in the bucket: f32 for 16-bit floats, unless the ranks exchange 16 bits.
    pub(crate) dtype: DType,
}

impl Size {
    /// The size with the type of the exchange in place of f32.
    pub(crate) fn exchanged_as(self, exchange: DType) -> Self {
        let dtype = if self.dtype == DType::F32 { exchange } else { self.dtype };
        Self { dtype, ..self }
    }

    const fn bytes(self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// The buckets of all gradients.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BucketAssignment {
    pub(crate) buckets: Vec<Bucket>,
    /// The bucket and the slot of each parameter.
    pub(crate) places: Vec<(usize, usize)>,
    /// The parameters in the order in which the assignment expects their gradients.
    pub(crate) order: Vec<usize>,
    /// How many of them, from the first on, are expected to have a gradient. The others are in buckets of their own, which
    /// need no memory.
    pub(crate) expected: usize,
}

/// Gradients that share one allocation and are summed together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) dtype: DType,
    /// The elements, with the gaps between gradients.
    pub(crate) elements: usize,
    pub(crate) slots: Vec<Slot>,
    /// The elements of each rank's gradients, if each rank keeps only those of its own parameters.
    pub(crate) parts: Vec<Range<usize>>,
}

/// The place of a gradient in its bucket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) parameter: usize,
    /// In elements.
    pub(crate) offset: usize,
    pub(crate) elements: usize,
}

impl BucketAssignment {
    /// Fills buckets of about `bytes` bytes in this order of the parameters. With owners, the gradients of a bucket are
    /// sorted by owner.
    pub(crate) fn new(
        sizes: &[Size],
        order: Vec<usize>,
        expected: usize,
        bytes: usize,
        owners: Option<(&[usize], usize)>,
    ) -> Self {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        // The group that each element type currently fills, with its bytes.
        let mut open: Vec<(DType, usize, usize)> = Vec::new();
        for (position, &parameter) in order.iter().enumerate() {
            if position == expected {
                open.clear();
            }
            let size = sizes[parameter];
            let at = open.iter().position(|(dtype, ..)| *dtype == size.dtype).unwrap_or_else(|| {
                groups.push(Vec::new());
                open.push((size.dtype, groups.len() - 1, 0));
                open.len() - 1
            });
            let (_, group, filled) = &mut open[at];
            groups[*group].push(parameter);
            *filled += size.bytes();
            let limit = if *group == 0 { FIRST_BYTES.min(bytes) } else { bytes };
            if *filled >= limit {
                open.swap_remove(at);
            }
        }
        let buckets: Vec<_> = groups.into_iter().map(|group| Bucket::new(sizes, group, owners)).collect();
        let mut places = vec![(0, 0); sizes.len()];
        for (number, bucket) in buckets.iter().enumerate() {
            for (slot, member) in bucket.slots.iter().enumerate() {
                places[member.parameter] = (number, slot);
            }
        }
        Self { buckets, places, order, expected }
    }
}

impl Bucket {
    fn new(sizes: &[Size], mut group: Vec<usize>, owners: Option<(&[usize], usize)>) -> Self {
        if let Some((owners, _)) = owners {
            group.sort_by_key(|parameter| owners[*parameter]);
        }
        let dtype = group.first().map_or(DType::F32, |parameter| sizes[*parameter].dtype);
        let step = ALIGNMENT / dtype.size();
        let (mut slots, mut elements) = (Vec::with_capacity(group.len()), 0_usize);
        for parameter in group {
            let offset = elements.next_multiple_of(step);
            elements = offset + sizes[parameter].elements;
            slots.push(Slot { parameter, offset, elements: sizes[parameter].elements });
        }
        let parts = owners.map_or_else(Vec::new, |(owners, ranks)| {
            let part = |rank| {
                let own = |slot: &&Slot| owners[slot.parameter] == rank;
                let start = slots.iter().find(own).map_or(0, |slot| slot.offset);
                start..slots.iter().rfind(own).map_or(0, |slot| slot.offset + slot.elements)
            };
            (0..ranks).map(part).collect()
        });
        Self { dtype, elements, slots, parts }
    }

    /// Returns whether the busiest rank receives fewer elements if each rank sums its own part than in an all-reduce. The
    /// owner of a large gradient would receive it from all ranks at once, and keep all copies until they are summed.
    pub(crate) fn is_balanced(&self) -> bool {
        let largest = self.parts.iter().map(Range::len).max().unwrap_or(0);
        largest * self.parts.len() < 2 * self.elements
    }
}

/// Divides the parameters among the ranks: the largest first, each to the rank with the fewest bytes so far. Frozen parameters
/// come last, because they need no state.
pub(crate) fn owners(sizes: &[Size], is_frozen: impl Fn(usize) -> bool, ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|parameter| (is_frozen(*parameter), std::cmp::Reverse(sizes[*parameter].bytes())));
    let (mut loads, mut owners) = (vec![0_usize; ranks.max(1)], vec![0; sizes.len()]);
    for parameter in order {
        let rank = loads.iter().enumerate().min_by_key(|(_, load)| **load).map_or(0, |(rank, _)| rank);
        owners[parameter] = rank;
        loads[rank] += sizes[parameter].bytes();
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(elements: &[usize]) -> Vec<Size> {
        elements.iter().map(|&elements| Size { elements, dtype: DType::F32 }).collect()
    }

    #[test]
    fn buckets_fill_in_order_and_the_first_is_small() {
        let mib = 1 << 18;
        let sizes = f32s(&[mib, mib, mib, mib, mib]);
        let assignment = BucketAssignment::new(&sizes, vec![4, 3, 2, 1, 0], 5, 3 << 20, None);
        let members = |bucket: &Bucket| bucket.slots.iter().map(|slot| slot.parameter).collect::<Vec<_>>();
        assert_eq!(
            assignment.buckets.iter().map(members).collect::<Vec<_>>(),
            [vec![4], vec![3, 2, 1], vec![0]]
        );
        assert_eq!(assignment.places, [(2, 0), (1, 2), (1, 1), (1, 0), (0, 0)]);
    }

    #[test]
    fn parameters_without_gradients_have_their_own_buckets() {
        let assignment = BucketAssignment::new(&f32s(&[10, 10, 10]), vec![2, 0, 1], 2, 1 << 20, None);
        assert_eq!(assignment.places, [(0, 1), (1, 0), (0, 0)]);
    }

    #[test]
    fn gradients_are_aligned_and_types_have_their_own_buckets() {
        let mut sizes = f32s(&[1, 17, 3]);
        sizes[1].dtype = DType::F64;
        let assignment = BucketAssignment::new(&sizes, vec![0, 1, 2], 3, 1 << 20, None);
        assert_eq!(assignment.buckets.len(), 2);
        assert_eq!((assignment.buckets[0].dtype, assignment.buckets[0].elements), (DType::F32, 16 + 3));
        assert_eq!((assignment.buckets[1].dtype, assignment.buckets[1].elements), (DType::F64, 17));
        assert_eq!(assignment.buckets[0].slots[1], Slot { parameter: 2, offset: 16, elements: 3 });
    }

    #[test]
    fn owners_have_similar_bytes_and_adjacent_parts() {
        let sizes = f32s(&[10, 40, 30, 20, 20]);
        let owners_with = |frozen: &[usize]| owners(&sizes, |parameter| frozen.contains(&parameter), 2);
        let owners = owners_with(&[]);
        assert_eq!(owners, [1, 0, 1, 1, 0]);
        assert_eq!(owners_with(&[1]), [0, 0, 0, 1, 1], "the frozen one has no state");
        let assignment = BucketAssignment::new(&sizes, vec![0, 1, 2, 3, 4], 5, 1 << 20, Some((&owners, 2)));
        let slots: Vec<_> = assignment.buckets[0].slots.iter().map(|slot| slot.parameter).collect();
        assert_eq!(slots, [1, 4, 0, 2, 3]);
        assert_eq!(assignment.buckets[0].parts, [0..68, 80..148]);
    }

    #[test]
    fn ranks_without_parameters_have_empty_parts() {
        let sizes = f32s(&[3]);
        let assignment =
            BucketAssignment::new(&sizes, vec![0], 1, 1 << 20, Some((&owners(&sizes, |_| false, 3), 3)));
        assert_eq!(assignment.buckets[0].parts, [0..3, 0..0, 0..0]);
    }

    #[test]
    fn a_large_gradient_of_one_of_many_ranks_is_not_balanced() {
        let is_balanced = |sizes: &[usize], ranks| {
            let (sizes, order): (_, Vec<_>) = (f32s(sizes), (0..sizes.len()).collect());
            let (count, owners) = (order.len(), owners(&sizes, |_| false, ranks));
            let assignment = BucketAssignment::new(&sizes, order, count, 1 << 20, Some((&owners, ranks)));
            assignment.buckets[0].is_balanced()
        };
        // 54 elements with gaps. Each of 3 ranks receives 2 × 36 in an all-reduce, and rank 0 receives 2 × 30 if it sums its
        // own part. Each of 4 ranks receives 2 × 40.5, and rank 0 receives 3 × 30.
        assert!(is_balanced(&[30, 6, 6], 3));
        assert!(!is_balanced(&[30, 6, 6], 4));
        // 30 elements either way, but the all-reduce needs less memory.
        assert!(!is_balanced(&[30], 2));
    }
}
