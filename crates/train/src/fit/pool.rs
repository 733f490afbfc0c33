//! The smallest pool in which the chosen plan trains.

use std::time::Instant;

use highwater_distributed::World;
use highwater_tensor::{Device, DryRunOptions, Result, smallest_pool};

use super::error::FitError;
use super::found::Fit;
use super::plan::Plan;
use super::trial::{Trial, tried_ranks};

impl Fit {
    /// Finds the smallest pool in which the chosen plan trains on all ranks, by dry runs, and stores it in
    /// [`Candidate::smallest_pool_bytes`](super::Candidate::smallest_pool_bytes), which tables and JSON files show. A search has
    /// done so for its plan; after [`measure`](Self::measure), another plan may be the chosen one.
    ///
    /// `options` and `program` are those of the search. It takes three dry runs if the pool is as large as the peak, and
    /// usually up to 30 otherwise.
    ///
    /// ```
    /// use highwater::fit::{Plan, Space, fit};
    /// use highwater::prelude::*;
    ///
    /// let train = |device: &Device, plan: &Plan| {
    ///     let model = Linear::new(device, 64, 64, &Rng::new(0))?;
    ///     let mut optimizer = AdamW::new(model.parameters(), 1e-3)?;
    ///     for _ in 0..plan.steps(10) {
    ///         let x = Tensor::zeros(device, [plan.micro_batch, 64])?;
    ///         optimizer.step(model.forward(&x)?.square()?.mean_all()?.backward()?)?;
    ///     }
    ///     Ok(())
    /// };
    /// let card: DeviceProfile = "rtx-4090".parse()?;
    /// let mut found = fit(&card, &Space::new(32).whole_batch(), train)?;
    /// let pool = found.find_smallest_pool(&card, |device, plan, _| train(device, plan))?;
    /// assert!(pool >= found.chosen().peak_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of the program.
    pub fn find_smallest_pool(
        &mut self,
        options: impl Into<DryRunOptions>,
        program: impl FnMut(&Device, &Plan, &World) -> Result<()>,
    ) -> Result<u64, FitError> {
        let (start, mut trial) = (Instant::now(), Trial::new(program));
        let bytes = trial.smallest_pool(&options.into().unlimited(), &self.chosen().plan)?;
        self.runs += trial.runs;
        self.search_seconds += start.elapsed().as_secs_f64();
        // The plans of a search never lack one that fits.
        self.plans[0].smallest_pool_bytes = Some(bytes);
        Ok(bytes)
    }
}

impl<P: FnMut(&Device, &Plan, &World) -> Result<()>> Trial<P> {
    /// Returns the smallest pool in which the ranks of a plan train.
    pub(super) fn smallest_pool(&mut self, unlimited: &DryRunOptions, plan: &Plan) -> Result<u64, FitError> {
        let (_, rehearsal) = self.rehearse(unlimited, plan)?;
        let mut smallest = None;
        for rank in tried_ranks(&rehearsal) {
            let mut run = |device: &Device| self.run_on(device, &rehearsal, rank);
            // Later ranks usually need no more than the first.
            if let Some(limit) = smallest {
                match unlimited.clone().limit(limit).run(&mut run) {
                    Ok(_) => continue,
                    Err(error) if error.needs_more_memory() => {}
                    Err(error) => return Err(error.into()),
                }
            }
            smallest = smallest.max(Some(smallest_pool(unlimited, run)?.smallest));
        }
        Ok(smallest.map_or(0, |bytes| bytes.get()))
    }
}
