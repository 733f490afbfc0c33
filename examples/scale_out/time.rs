//! The time of a training step with several ranks: compute, latency and bandwidth.
//!
//! ```text
//! compute   forward | backward ..................... |
//! link                 bucket 0 | bucket 1 | …       | last buckets | parameters
//! ```
//!
//! Most buckets are summed while backward continues. The last ones are full only when backward ends. Ranks that divide
//! the optimizer's state then exchange the parameters that they have updated.

use super::model::{Size, VOCABULARY};

/// A connection of a rank to the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The seconds until a message of no bytes arrives.
    pub(crate) latency: f64,
    /// The bytes per second in each direction.
    pub(crate) bandwidth: f64,
}

/// How ranks exchange an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// Each part of the array passes through all ranks, one after the other.
    Ring,
    /// As `SumOrder::Ordered`: each rank receives a part of the array from all other ranks at once.
    Ordered,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 2] = [Self::Ring, Self::Ordered];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Ordered => "ordered",
        }
    }

    /// The seconds of an all-gather or a reduce-scatter of equal parts.
    pub(crate) fn all_gather(self, link: Link, bytes: f64, ranks: usize) -> f64 {
        let others = ranks.saturating_sub(1) as f64;
        let messages_in_a_row = match self {
            Self::Ring => others,
            Self::Ordered => others.min(1.0),
        };
        others / ranks.max(1) as f64 * bytes / link.bandwidth + messages_in_a_row * link.latency
    }

    /// The seconds of an all-reduce: a reduce-scatter and an all-gather.
    pub(crate) fn all_reduce(self, link: Link, bytes: f64, ranks: usize) -> f64 {
        2.0 * self.all_gather(link, bytes, ranks)
    }
}

/// The seconds of a broadcast along a binomial tree: in each round, all ranks that have the array send it on.
pub(crate) fn broadcast(link: Link, bytes: f64, ranks: usize) -> f64 {
    let rounds = f64::from(usize::BITS - ranks.saturating_sub(1).leading_zeros());
    rounds * (link.latency + bytes / link.bandwidth)
}

/// The multiply-adds of a training step of a GPT: forward, and twice that for backward.
pub(crate) fn multiply_adds(size: Size, batch: usize, context: usize) -> f64 {
    let [layers, width, length] = [size.layers, size.width, context].map(|number| number as f64);
    // Attention has four products (4 w²), and the perceptron two (8 w²). Scores and weighted sums cover all positions.
    let layer = 12.0 * width * width + 2.0 * length * width;
    let token = layers * layer + VOCABULARY as f64 * width;
    3.0 * token * (batch * context) as f64
}

/// A training step of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The seconds of the forward and backward pass.
    pub(crate) compute: f64,
    /// The bytes of the buckets that are full before backward ends.
    pub(crate) early: Vec<f64>,
    /// The bytes of the other buckets.
    pub(crate) last: Vec<f64>,
}

/// The share of the backward pass in the multiply-adds of a step: gradients of inputs and of weights.
const BACKWARD: f64 = 2.0 / 3.0;

impl Step {
    /// The seconds of a step whose gradients are all-reduced.
    pub(crate) fn seconds(&self, link: Link, algorithm: Algorithm, ranks: usize) -> f64 {
        let sum = |buckets: &[f64]| -> f64 {
            buckets.iter().map(|bytes| algorithm.all_reduce(link, *bytes, ranks)).sum()
        };
        self.compute + (sum(&self.early) - BACKWARD * self.compute).max(0.0) + sum(&self.last)
    }

    /// The time of one rank over that of several: 1 if communication is free.
    pub(crate) fn efficiency(&self, link: Link, algorithm: Algorithm, ranks: usize) -> f64 {
        self.compute / self.seconds(link, algorithm, ranks)
    }

    /// The most ranks, up to `most`, that reach this efficiency.
    pub(crate) fn scales_to(&self, link: Link, algorithm: Algorithm, efficiency: f64, most: usize) -> usize {
        // More ranks take longer.
        let reaches = |ranks: &usize| self.efficiency(link, algorithm, *ranks) >= efficiency;
        (2..=most).take_while(reaches).last().unwrap_or(1)
    }

    /// The smallest factor by which each rank must compute more, so that `ranks` ranks reach this efficiency; `None`
    /// above `most`.
    pub(crate) fn work_for(
        &self,
        link: Link,
        algorithm: Algorithm,
        efficiency: f64,
        ranks: usize,
        most: usize,
    ) -> Option<usize> {
        let reaches = |factor: usize| {
            let step = Self { compute: self.compute * factor as f64, ..self.clone() };
            step.efficiency(link, algorithm, ranks) >= efficiency
        };
        // More work hides more communication.
        let factors: Vec<usize> = (1..=most).collect();
        factors.get(factors.partition_point(|factor| !reaches(*factor))).copied()
    }
}
