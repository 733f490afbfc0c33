//! Data-parallel training: each rank computes the gradients of its own batch, and all ranks step along their mean.
//!
//! ```text
//! backward pass    gradients fill buckets in the order of the first pass     pass.rs, plan.rs
//! reducer thread   exchanges stages, sums full buckets                       reduction/
//! optimizer        steps once all ranks have agreed to                       mod.rs
//! ```
//!
//! The sums are those of one process that adds the gradients of the ranks' batches in rank order. 16-bit gradients are
//! summed in f32, as [`Gradients::accumulate`] does.

use std::sync::Arc;

use highwater_nn::io::Arrays;
use highwater_nn::optim::{Optimizer, allow_no_parameters};
use highwater_tensor::{GradientHook, Gradients, HookGuard, Parameter, Result, hook_gradients};
use highwater_tracking::{Phase, phase};

use crate::agree::Entry;
use crate::collective::Reduce;
use crate::reduction::{ParallelError, Stage};
use crate::shard::Shard;
use crate::world::World;

mod broadcast;
mod pass;
mod plan;
mod shared;
mod state;
#[cfg(test)]
mod tests;

pub use shared::no_sync;

use broadcast::{copy_from, copy_from_owners};
use plan::Plan;
use shared::{Hook, Shared};

impl World {
    /// Wraps an optimizer, so that backward passes return the mean gradients of all ranks.
    ///
    /// Rank 0 sends its parameters to all ranks. From now on each backward pass that leads to these parameters is a common
    /// operation of all ranks, as is each step. In a world of one rank nothing changes.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::distributed::World;
    ///
    /// let world = World::from_env()?;
    /// let device = Device::cpu()?;
    /// let model = Linear::new(&device, 4, 2, &Rng::new(0))?;
    /// let mut optimizer = world.data_parallel(AdamW::new(model.parameters(), 1e-3)?)?;
    /// let loss = model.forward(&Tensor::ones(&device, [8, 4])?)?.square()?.mean_all()?;
    /// optimizer.step(loss.backward()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error contains a [`ParallelError`] if the ranks have different parameters, a rank does not answer, or a parameter
    /// is in memory that this world cannot exchange.
    pub fn data_parallel<O: Optimizer>(&self, optimizer: O) -> Result<DataParallel<O>> {
        let parameters = optimizer.parameters();
        self.sharded(Shard::None, parameters, |_| Ok(optimizer))
    }

    /// Like [`data_parallel`](Self::data_parallel), but the ranks divide memory among themselves. `make` receives the
    /// parameters of this rank and creates their optimizer.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::distributed::{Shard, World};
    ///
    /// let world = World::from_env()?;
    /// let model = Linear::new(&Device::cpu()?, 4, 2, &Rng::new(0))?;
    /// let optimizer = world.sharded(Shard::Optimizer, model.parameters(), |own| AdamW::new(own, 1e-3))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A rank may own no parameter: with few large parameters, more ranks do not save more memory.
    ///
    /// # Errors
    ///
    /// The errors of `make` and of [`data_parallel`](Self::data_parallel).
    pub fn sharded<O: Optimizer>(
        &self,
        shard: Shard,
        parameters: Vec<(String, Parameter)>,
        make: impl FnOnce(Vec<(String, Parameter)>) -> Result<O>,
    ) -> Result<DataParallel<O>> {
        let shared = Shared::new(self, shard, parameters)?;
        let own: Vec<_> = shared.own_parameters();
        let expected = own.len();
        // A rank may own none.
        let optimizer = allow_no_parameters(|| make(own))?;
        let held = optimizer.parameters().len();
        if held != expected {
            return Err(ParallelError::Share { shard, expected, held }.into());
        }
        DataParallel::new(optimizer, shared)
    }
}

/// An optimizer whose gradients are the means over all ranks. See [`World::data_parallel`].
#[derive(Debug)]
pub struct DataParallel<O> {
    optimizer: O,
    shared: Arc<Shared>,
    _hook: HookGuard,
}

impl<O: Optimizer> DataParallel<O> {
    fn new(optimizer: O, shared: Arc<Shared>) -> Result<Self> {
        let hook: Arc<dyn GradientHook> = Arc::new(Hook(Arc::clone(&shared)));
        let hooked: Vec<&Parameter> = match shared.world.size() {
            1 => Vec::new(),
            _ => shared.parameters.iter().map(|(_, parameter)| parameter).collect(),
        };
        let guard = hook_gradients(&hooked, hook)?;
        let parallel = Self { optimizer, shared, _hook: guard };
        parallel.agree()?;
        Ok(parallel)
    }

    /// Checks that all ranks have the same parameters and options, and sends them those of rank 0.
    fn agree(&self) -> Result<()> {
        let shared = &self.shared;
        if shared.world.size() == 1 {
            return Ok(());
        }
        if !shared.world.is_rehearsal() {
            let entry = |(path, parameter): &(String, Parameter)| {
                let value = parameter.value();
                let (shape, dtype) = (value.dims().to_vec(), Some(value.dtype()));
                let options = if parameter.is_frozen() { "frozen".into() } else { String::new() };
                Entry { name: path.clone(), shape, dtype, options }
            };
            let mut entries: Vec<Entry> = shared.parameters.iter().map(entry).collect();
            let options = [
                ("optimizer", self.optimizer.name().to_owned()),
                ("learning rate", self.optimizer.learning_rate().to_string()),
                ("shard", format!("{:?}", shared.shard)),
            ];
            entries.extend(options.map(|(name, options)| Entry {
                name: name.into(),
                shape: Vec::new(),
                dtype: None,
                options,
            }));
            shared.world.agree(&entries).map_err(ParallelError::from)?;
        }
        copy_from(&shared.world, &shared.parameters, 0)
    }

    /// Sets the size of a bucket in bytes; 25 MiB by default. The first bucket has at most 1 MiB.
    ///
    /// All ranks need the same size. Memory for the exchange and the granularity of buckets take up to two buckets.
    #[must_use]
    pub fn bucket_bytes(self, bytes: usize) -> Self {
        {
            let mut planning = self.shared.planning();
            planning.bucket_bytes = bytes;
            let (order, expected) = (planning.plan.order.clone(), planning.plan.expected);
            let plan = Plan::new(&self.shared.sizes, order, expected, bytes, self.shared.sharded_owners());
            planning.plan = Arc::new(plan);
        }
        self
    }

    /// Returns the bytes of each bucket, in the order in which the ranks sum them. After the first backward pass it is the
    /// order of that pass.
    #[must_use]
    pub fn bucket_sizes(&self) -> Vec<usize> {
        self.shared.plan().buckets.iter().map(|bucket| bucket.elements * bucket.dtype.size()).collect()
    }

    /// Sets the order of the additions, on all ranks. [`Reduce::Library`] may be faster, but the results differ from those of
    /// one process in the last bits. It has no effect with [`Shard::Gradients`].
    #[must_use]
    pub fn reduce(self, reduce: Reduce) -> Self {
        self.shared.planning().reduce = reduce;
        self
    }

    /// Returns the optimizer of this rank's parameters.
    #[must_use]
    pub const fn inner(&self) -> &O {
        &self.optimizer
    }

    /// Returns the ranks.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.shared.world
    }

    /// Returns what the ranks divide among themselves.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.shared.shard
    }

    /// Runs a step that all ranks complete, or all discard. Wrap the forward pass, the backward pass and the step.
    ///
    /// If a rank fails, it tells the others, whose error then contains [`ParallelError::Discarded`]. All ranks can go on
    /// with the next step, or retry with a smaller batch if [`ParallelError::is_out_of_memory`].
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::distributed::{ParallelError, World};
    ///
    /// let (world, device) = (World::from_env()?, Device::cpu()?);
    /// let model = Linear::new(&device, 4, 2, &Rng::new(0))?;
    /// let mut optimizer = world.data_parallel(AdamW::new(model.parameters(), 1e-3)?)?;
    /// let mut samples = 64;
    /// loop {
    ///     let result = optimizer.attempt(|optimizer| {
    ///         let x = Tensor::ones(&device, [samples, 4])?;
    ///         optimizer.step(model.forward(&x)?.square()?.mean_all()?.backward()?)
    ///     });
    ///     match result {
    ///         Err(error) if ParallelError::is_out_of_memory(&error) && samples > 1 => samples /= 2,
    ///         result => break result?,
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `step`, on this rank or on another one.
    pub fn attempt<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.shared.world.size() == 1 {
            return step(self);
        }
        self.shared.reducer().begin();
        step(self).inspect_err(|error| {
            // The other ranks know of errors of the exchange.
            if ParallelError::of(error).is_none() && !self.shared.reducer().has_failed() {
                let out_of_memory = error.out_of_memory().is_some();
                let _ = self.shared.meet(if out_of_memory { Stage::OutOfMemory } else { Stage::Failed });
            }
        })
    }
}

impl<O: Optimizer> Optimizer for DataParallel<O> {
    fn name(&self) -> &'static str {
        self.optimizer.name()
    }

    /// Returns the parameters of all ranks.
    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.shared.parameters.clone()
    }

    fn step(&mut self, mut gradients: Gradients) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        if shared.world.size() == 1 {
            return self.optimizer.step(gradients);
        }
        gradients.check_parameters(self.name(), &shared.parameters)?;
        let own = if shared.shard == Shard::None {
            gradients
        } else {
            gradients.split_off(&shared.own_parameters())
        };
        {
            // Everything that may lack memory happens before the ranks agree to step.
            let _phase = phase(Phase::Optimizer);
            let held = shared.parameters.iter().map(|(path, parameter)| (&path[..], parameter));
            own.prepare_update(self.name(), held)?;
            if shared.shard != Shard::None {
                shared.parameters.iter().try_for_each(|(_, parameter)| parameter.make_unique())?;
            }
        }
        shared.meet(Stage::Step)?;
        self.optimizer.step(own)?;
        if shared.shard == Shard::None {
            return Ok(());
        }
        copy_from_owners(&shared.world, &shared.parameters, &shared.owners)
    }

    fn ranks(&self) -> usize {
        self.shared.world.size()
    }

    /// With [`Shard::Gradients`] a common operation of all ranks: each has a part of the gradients.
    fn clip_norm(&self, gradients: &mut Gradients, max: f64) -> Result<f64> {
        if self.shared.shard != Shard::Gradients || self.shared.world.size() == 1 {
            return gradients.clip_norm(max);
        }
        let norm = state::norm(&self.shared, gradients)?;
        gradients.clip_known_norm(norm, max)?;
        Ok(norm)
    }

    fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        self.optimizer.set_learning_rate(learning_rate)
    }

    /// A common operation of all ranks, if they divide the state. Returns the whole state on all ranks, as one process has
    /// it.
    fn state(&self) -> Result<Arrays> {
        let own = self.optimizer.state()?;
        if self.shared.shard == Shard::None || self.shared.world.size() == 1 {
            return Ok(own);
        }
        state::collect(&self.shared.world, &own)
    }

    fn check_state(&self, state: &Arrays) -> Result<()> {
        self.optimizer.check_state(&state::own_part(&self.shared, state))
    }

    /// Loads the state of this rank's parameters from the [whole state](Self::state) of any number of ranks.
    fn load_state(&mut self, state: &Arrays) -> Result<()> {
        self.optimizer.load_state(&state::own_part(&self.shared, state))
    }
}
