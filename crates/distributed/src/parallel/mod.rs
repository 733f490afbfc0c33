//! Data-parallel training: each rank computes the gradients of its own batch, and all ranks step along their mean.
//!
//! ```text
//! backward pass    gradients fill buckets in the order of the first pass     pass.rs, assignment.rs
//! reducer thread   exchanges stages, sums full buckets                       reduction/
//! optimizer        steps once all ranks have agreed to                       mod.rs
//! ```
//!
//! The sums are those of one process that adds the gradients of the ranks' batches in rank order. 16-bit gradients are
//! summed in f32, as [`Gradients::accumulate`] does. [`DataParallel::exchange_dtype`] rounds gradients to 16 bits before they
//! enter their bucket, and the sums return to f32 when they leave it.

use std::sync::Arc;

use highwater_nn::io::Arrays;
use highwater_nn::optim::{Optimizer, ParameterGroup};
use highwater_tensor::{DType, Error, GradientHook, Gradients, HookGuard, Parameter, Result, hook_gradients};
use highwater_tracking::{Phase, phase};

use crate::agree::Fingerprint;
use crate::collective::SumOrder;
use crate::reduction::{ParallelError, Stage, exchange};
use crate::shard::Shard;
use crate::world::World;

mod assignment;
mod broadcast;
mod fingerprint;
mod pass;
mod shared;
mod state;
#[cfg(test)]
mod tests;

pub use shared::no_sync;

use broadcast::{copy_from, copy_from_owners};
use pass::Pass;
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
        make: impl FnOnce(ParameterGroup) -> Result<O>,
    ) -> Result<DataParallel<O>> {
        let parallel = DataParallel::new(self, shard, parameters, make).inspect_err(|error| {
            // The other ranks wait for this one.
            if self.size() > 1 {
                let _ = exchange(self.collective(), failure_of(error), &Fingerprint::of(Vec::new()), &[]);
            }
        })?;
        parallel.agree()?;
        Ok(parallel)
    }
}

/// Returns the stage that tells other ranks of an error.
fn failure_of(error: &Error) -> Stage {
    if error.out_of_memory().is_some() { Stage::OutOfMemory } else { Stage::Failed }
}

/// An optimizer whose gradients are the means over all ranks. See [`World::data_parallel`].
#[derive(Debug)]
pub struct DataParallel<O> {
    optimizer: O,
    shared: Arc<Shared>,
    _hook: HookGuard,
}

impl<O: Optimizer> DataParallel<O> {
    fn new(
        world: &World,
        shard: Shard,
        parameters: Vec<(String, Parameter)>,
        make: impl FnOnce(ParameterGroup) -> Result<O>,
    ) -> Result<Self> {
        let shared = Shared::new(world, shard, parameters)?;
        let own: Vec<_> = shared.own_parameters();
        let expected = own.len();
        // A rank may own none.
        let optimizer = make(ParameterGroup::part(own))?;
        let held = optimizer.parameters().len();
        if held != expected {
            return Err(ParallelError::Share { shard, expected, held }.into());
        }
        let hook: Arc<dyn GradientHook> = Arc::new(Hook(Arc::clone(&shared)));
        let hooked: Vec<&Parameter> = match shared.world.size() {
            1 => Vec::new(),
            _ => shared.parameters.iter().map(|(_, parameter)| parameter).collect(),
        };
        let guard = hook_gradients(&hooked, hook)?;
        let parallel = Self { optimizer, shared, _hook: guard };
        parallel.note_options();
        Ok(parallel)
    }

    /// Notes the options of the optimizer, which other ranks compare with theirs.
    fn note_options(&self) {
        if self.shared.world.size() > 1 {
            let kind = ("optimizer".to_owned(), self.optimizer.name().to_owned());
            let options = [kind].into_iter().chain(self.optimizer.settings()).collect();
            self.shared.set(|settings| settings.options = options);
        }
    }

    /// Checks that all ranks have the same parameters and options, and sends them those of rank 0.
    fn agree(&self) -> Result<()> {
        let shared = &self.shared;
        if shared.world.size() == 1 {
            return Ok(());
        }
        if !shared.world.is_rehearsal() {
            // Unlike later ones, this fingerprint includes shapes.
            let entries = shared.fingerprint().entries();
            exchange(shared.world.collective(), Stage::Wrap, &Fingerprint::of(entries), &[])?;
        }
        copy_from(&shared.world, &shared.parameters, 0)
    }

    /// Sets the size of a bucket in bytes; 25 MiB by default. The first bucket has at most 1 MiB.
    ///
    /// All ranks need the same size. Memory for the exchange and the granularity of buckets take up to two buckets.
    #[must_use]
    pub fn bucket_bytes(self, bytes: usize) -> Self {
        self.shared.assign_again(|bucketing| bucketing.bucket_bytes = bytes);
        self
    }

    /// Sets the element type in which ranks exchange gradients; f32 by default. All ranks need the same one.
    ///
    /// [`DType::BF16`] halves the bytes of buckets. Each rank rounds its gradients once. Sums in rank order are computed in f32
    /// and rounded once more; a library may add 16-bit floats. All ranks get the same sums, as f32. [`DType::F16`] is more
    /// precise, but overflows above 65,504. Gradients in f64 do not change.
    ///
    /// ```
    /// use highwater::prelude::*;
    /// use highwater::distributed::World;
    ///
    /// let (world, device) = (World::from_env()?, Device::cpu()?);
    /// let model = Linear::new(&device, 4, 2, &Rng::new(0))?;
    /// let optimizer = world.data_parallel(AdamW::new(model.parameters(), 1e-3)?)?.exchange_dtype(DType::BF16)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::BadArgument`] unless the type is f32 or a 16-bit float.
    pub fn exchange_dtype(self, dtype: DType) -> Result<Self> {
        if dtype != DType::F32 && !dtype.is_half() {
            let (op, argument, expected) = (shared::OP, "exchange_dtype", "f32, bf16 or f16");
            return Err(Error::BadArgument { op, argument, expected, got: dtype.to_string() });
        }
        self.shared.assign_again(|bucketing| bucketing.exchange = dtype);
        Ok(self)
    }

    /// Returns the bytes of each bucket, in the order in which the ranks sum them. After the first backward pass it is the
    /// order of that pass.
    #[must_use]
    pub fn bucket_sizes(&self) -> Vec<usize> {
        self.shared.assignment().buckets.iter().map(|bucket| bucket.elements * bucket.dtype.size()).collect()
    }

    /// Sets the order of the additions, on all ranks. [`SumOrder::Library`] may be faster, but the results differ from those of
    /// one process in the last bits. It has no effect with [`Shard::Gradients`].
    #[must_use]
    pub fn reduce(self, reduce: SumOrder) -> Self {
        self.shared.bucketing().reduce = reduce;
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

    /// Replaces gradients of [`no_sync`] passes, and sums with such gradients, by the means over all ranks. A step does this
    /// itself: call it to look at the gradients or to change them before. A common operation of all ranks.
    ///
    /// # Errors
    ///
    /// Memory runs out, or another rank fails. The gradients are incomplete then.
    pub fn sync_gradients(&self, gradients: &mut Gradients) -> Result<()> {
        self.sync_at(Stage::Sync, gradients)
    }

    fn sync_at(&self, stage: Stage, gradients: &mut Gradients) -> Result<()> {
        let shared = &self.shared;
        if shared.world.size() > 1 && shared.meet_any(stage, gradients.has_local())? {
            Pass::sum_local(shared, gradients)?;
        }
        Ok(())
    }

    /// Moves the gradients of the parameters that this rank updates.
    fn own_part(&self, gradients: &mut Gradients) -> Gradients {
        match self.shared.shard {
            Shard::None => std::mem::take(gradients),
            Shard::Optimizer | Shard::Gradients => gradients.split_off(&self.shared.own_parameters()),
        }
    }

    /// Allocates missing state, and makes the parameters writable. Everything of a step that may lack memory happens here,
    /// before the ranks agree to step.
    fn prepare(&mut self, own: &Gradients) -> Result<()> {
        let (shared, name) = (&self.shared, self.optimizer.name());
        let _phase = phase(Phase::Optimizer);
        self.optimizer.allocate_state(own, &mut || {
            let held = shared.parameters.iter().map(|(path, parameter)| (&path[..], parameter));
            own.prepare_update(name, held)?;
            if shared.shard != Shard::None {
                shared.parameters.iter().try_for_each(|(_, parameter)| parameter.make_unique())?;
            }
            Ok(())
        })
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
                let _ = self.shared.meet(failure_of(error), &[]);
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
        self.note_options();
        let is_local = gradients.has_local();
        let mut own = self.own_part(&mut gradients);
        if !is_local {
            self.prepare(&own)?;
        }
        if shared.meet_any(Stage::Step, is_local)? {
            gradients.accumulate(&mut own)?;
            Pass::sum_local(&shared, &mut gradients)?;
            own = self.own_part(&mut gradients);
            self.prepare(&own)?;
            shared.meet(Stage::Step, &[])?;
        }
        self.optimizer.step(own)?;
        shared.set(|settings| settings.steps += 1);
        if shared.shard == Shard::None {
            return Ok(());
        }
        copy_from_owners(&shared.world, &shared.parameters, &shared.owners)
    }

    fn allocate_state(&mut self, gradients: &Gradients, then: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.optimizer.allocate_state(gradients, then)
    }

    fn ranks(&self) -> usize {
        self.shared.world.size()
    }

    /// A common operation of all ranks. First [sums](Self::sync_gradients) gradients of [`no_sync`] passes.
    fn clip_norm(&self, gradients: &mut Gradients, max: f64) -> Result<f64> {
        self.sync_at(Stage::Clip, gradients)?;
        if self.shared.shard != Shard::Gradients || self.shared.world.size() == 1 {
            return gradients.clip_norm(max);
        }
        let norm = state::norm(&self.shared, gradients)?;
        gradients.clip_known_norm(norm, max)?;
        Ok(norm)
    }

    fn settings(&self) -> Vec<(String, String)> {
        self.optimizer.settings()
    }

    /// A common operation of all ranks.
    fn all_finite(&self, is_finite: bool, scale: f64) -> Result<bool> {
        if self.shared.world.size() == 1 {
            return Ok(is_finite);
        }
        self.shared.set(|settings| settings.scale = Some(scale));
        Ok(!self.shared.meet_any(Stage::Finite, !is_finite)?)
    }

    fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        self.optimizer.set_learning_rate(learning_rate)?;
        self.note_options();
        Ok(())
    }

    /// A common operation of all ranks, if they divide the state. Returns the whole state on all ranks, as one process has
    /// it.
    fn state(&self) -> Result<Arrays> {
        let own = self.optimizer.state()?;
        if self.shared.shard == Shard::None || self.shared.world.size() == 1 {
            return Ok(own);
        }
        self.shared.meet(Stage::SaveState, &[])?;
        state::collect(&self.shared.world, &own)
    }

    fn check_state(&self, state: &Arrays) -> Result<()> {
        self.optimizer.check_state(&state::own_part(&self.shared, state))
    }

    /// Loads the state of this rank's parameters from the [whole state](Self::state) of any number of ranks. A common operation
    /// of all ranks, which then have the parameters of rank 0. If the ranks load different states, nothing changes.
    fn load_state(&mut self, state: &Arrays) -> Result<()> {
        let shared = &self.shared;
        let own = state::own_part(shared, state);
        if shared.world.size() == 1 {
            return self.optimizer.load_state(&own);
        }
        let tell = |error: &Error| drop(shared.meet(failure_of(error), &[]));
        self.optimizer.check_state(&own).inspect_err(tell)?;
        if !shared.world.is_rehearsal() {
            let entries = Fingerprint::of(state::entries(state));
            exchange(shared.world.collective(), Stage::LoadState, &entries, &[])?;
        }
        self.optimizer.load_state(&own).inspect_err(tell)?;
        self.note_options();
        shared.meet(Stage::LoadState, &[])?;
        copy_from(&shared.world, &shared.parameters, 0)
    }
}
