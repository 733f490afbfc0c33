//! The plans that a search may choose from.

use highwater_distributed::Shard;
use highwater_tensor::DType;

use super::error::FitError;
use super::plan::Plan;

/// The most sizes of micro-batches that a search tries by default.
const SIZES: usize = 8;

/// The choices of a search. By default it varies the micro-batch and the recomputed blocks, which do not change the
/// mathematics of a step.
///
/// ```
/// use highwater::DType;
/// use highwater::fit::Space;
/// let space = Space::new(64).precisions([None, Some(DType::BF16)]).micro_batches([16, 32, 64]);
/// assert_eq!(space.plans().len(), 6);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    batch: usize,
    micro_batches: MicroBatches,
    precisions: Vec<Option<DType>>,
    ranks: Vec<usize>,
    shards: Vec<Shard>,
    recomputes: bool,
}

/// The sizes of micro-batches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MicroBatches {
    /// Up to [`SIZES`] divisors of the batch of a rank.
    Divisors,
    /// The batch of a rank in one piece.
    Whole,
    Sizes(Vec<usize>),
}

impl Space {
    /// Returns the default space for steps of this number of examples on all ranks.
    #[must_use]
    pub fn new(batch: usize) -> Self {
        Self {
            batch,
            micro_batches: MicroBatches::Divisors,
            precisions: vec![None],
            ranks: vec![1],
            shards: vec![Shard::None],
            recomputes: true,
        }
    }

    /// Sets the sizes of micro-batches. Sizes that do not divide the batch of a rank are ignored. The default are up to eight
    /// divisors of the batch, from the whole batch downwards.
    #[must_use]
    pub fn micro_batches(mut self, sizes: impl IntoIterator<Item = usize>) -> Self {
        self.micro_batches = MicroBatches::Sizes(sizes.into_iter().collect());
        self
    }

    /// Keeps the batch of a rank in one piece. A search does this by itself for models with batch normalization, whose
    /// results depend on the micro-batch.
    #[must_use]
    pub fn whole_batch(mut self) -> Self {
        self.micro_batches = MicroBatches::Whole;
        self
    }

    /// Sets the precisions: `None` for the types of the tensors, and `Some(DType::BF16)` or `Some(DType::F16)` for
    /// [mixed precision](highwater_tensor::mixed()), which changes results slightly.
    #[must_use]
    pub fn precisions(mut self, precisions: impl IntoIterator<Item = Option<DType>>) -> Self {
        self.precisions = precisions.into_iter().collect();
        self
    }

    /// Sets the numbers of ranks. They must divide the batch.
    #[must_use]
    pub fn ranks(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.ranks = ranks.into_iter().collect();
        self
    }

    /// Sets the divisions of memory among the ranks.
    #[must_use]
    pub fn shards(mut self, shards: impl IntoIterator<Item = Shard>) -> Self {
        self.shards = shards.into_iter().collect();
        self
    }

    /// Sets whether blocks may be recomputed in the backward pass.
    #[must_use]
    pub const fn recompute(mut self, recomputes: bool) -> Self {
        self.recomputes = recomputes;
        self
    }

    /// Returns the plans without recomputation, those of large micro-batches first.
    #[must_use]
    pub fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        let dividing = self.ranks.iter().filter(|ranks| **ranks > 0 && self.batch.is_multiple_of(**ranks));
        for &ranks in dividing {
            let own = self.batch / ranks;
            for micro_batch in self.sizes(own).into_iter().filter(|size| *size > 0) {
                for &shard in self.shards.iter().filter(|shard| ranks > 1 || **shard == Shard::None) {
                    for &precision in &self.precisions {
                        let mut plan = Plan::new(micro_batch);
                        (plan.accumulate, plan.ranks) = ((own / micro_batch) as u64, ranks);
                        (plan.shard, plan.precision) = (shard, precision);
                        plans.push(plan);
                    }
                }
            }
        }
        plans
    }

    /// Checks that each choice has a value, and that no number is 0.
    pub(super) fn check(&self) -> Result<(), FitError> {
        let bad = |choice, problem| Err(FitError::InvalidSpace { choice, problem });
        let sizes = match &self.micro_batches {
            MicroBatches::Sizes(sizes) => Some(&sizes[..]),
            MicroBatches::Divisors | MicroBatches::Whole => None,
        };
        if self.batch == 0 {
            return bad("the batch", "is 0; it is the number of examples of a step");
        }
        for (choice, is_empty) in [
            ("Space::micro_batches", sizes.is_some_and(<[usize]>::is_empty)),
            ("Space::precisions", self.precisions.is_empty()),
            ("Space::ranks", self.ranks.is_empty()),
            ("Space::shards", self.shards.is_empty()),
        ] {
            if is_empty {
                return bad(choice, "is empty; leave it out for its default");
            }
        }
        for (choice, numbers) in
            [("Space::micro_batches", sizes.unwrap_or_default()), ("Space::ranks", &self.ranks[..])]
        {
            if numbers.contains(&0) {
                return bad(choice, "contains 0");
            }
        }
        if !self.shards.contains(&Shard::None) && self.ranks == [1] {
            return bad("Space::shards", "divides memory among ranks, but Space::ranks allows one rank only");
        }
        Ok(())
    }

    pub(super) const fn batch(&self) -> usize {
        self.batch
    }

    pub(super) const fn recomputes(&self) -> bool {
        self.recomputes
    }

    /// The sizes of micro-batches for the batch of a rank, in descending order.
    fn sizes(&self, batch: usize) -> Vec<usize> {
        let sizes = match &self.micro_batches {
            MicroBatches::Divisors => return divisors(batch),
            MicroBatches::Whole => return vec![batch],
            MicroBatches::Sizes(sizes) => sizes,
        };
        let mut sizes: Vec<_> =
            sizes.iter().copied().filter(|size| *size > 0 && batch.is_multiple_of(*size)).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        sizes.dedup();
        sizes
    }
}

/// The divisors of a batch in descending order: all of them, or those nearest to halvings if there are many.
fn divisors(batch: usize) -> Vec<usize> {
    let all: Vec<usize> = (1..=batch.isqrt())
        .filter(|small| batch.is_multiple_of(*small))
        .flat_map(|small| [small, batch / small])
        .collect();
    let mut sizes = all.clone();
    if all.len() > SIZES {
        let halvings = (0..SIZES).map(|halvings| batch as f64 / f64::from(1u32 << halvings));
        let nearest = |wanted: f64| {
            all.iter().copied().min_by(|one, other| {
                let distance = |size: usize| (size as f64 / wanted).ln().abs();
                distance(*one).total_cmp(&distance(*other))
            })
        };
        sizes = halvings.filter_map(nearest).collect();
    }
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_all_or_near_halvings() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(12), [12, 6, 4, 3, 2, 1]);
        assert_eq!(divisors(64), [64, 32, 16, 8, 4, 2, 1]);
        assert_eq!(divisors(360), [360, 180, 90, 45, 24, 12, 6, 3]);
        assert_eq!(divisors(1009), [1009, 1]);
    }

    #[test]
    fn a_space_without_a_choice_is_refused_by_name() {
        let space = || Space::new(8);
        for (space, expected) in [
            (Space::new(0), "the batch is 0"),
            (space().precisions([]), "Space::precisions is empty"),
            (space().ranks([]), "Space::ranks is empty"),
            (space().ranks([2, 0]), "Space::ranks contains 0"),
            (space().shards([]), "Space::shards is empty"),
            (space().shards([Shard::Gradients]), "Space::shards divides memory among ranks"),
            (space().micro_batches([]), "Space::micro_batches is empty"),
            (space().micro_batches([4, 0]), "Space::micro_batches contains 0"),
        ] {
            let refused = space.check().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        space().ranks([1, 2]).shards([Shard::Gradients]).whole_batch().check().unwrap();
        assert!(Space::new(0).plans().is_empty());
    }

    #[test]
    fn micro_batches_divide_the_batch_of_a_rank() {
        let space =
            Space::new(24).ranks([1, 2, 5]).shards([Shard::None, Shard::Gradients]).micro_batches([8, 12, 7]);
        let plans: Vec<String> = space.plans().iter().map(ToString::to_string).collect();
        let expected = [
            "micro-batch 12 × 2",
            "micro-batch 8 × 3",
            "micro-batch 12 on 2 ranks",
            "micro-batch 12 on 2 ranks, gradients sharded",
        ];
        assert_eq!(plans, expected);
        assert!(space.plans().iter().all(|plan| plan.batch() == 24));
        assert_eq!(Space::new(24).whole_batch().plans().len(), 1);
    }
}
