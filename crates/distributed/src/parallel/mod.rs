//! Data-parallel training: each rank computes the gradients of its own batch, and all ranks step along their mean.
//!
//! ```text
//! backward pass    gradients fill buckets in the order of the first pass     pass.rs, region.rs, plan.rs
//! reducer thread   exchanges stages, sums full buckets                       reducer.rs, status.rs
//! optimizer        steps once all ranks have agreed to                       mod.rs
//! ```
//!
//! The sums are those of one process that adds the gradients of the ranks' batches in rank order. 16-bit gradients are
//! summed in f32, as [`Gradients::accumulate`] does.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use highwater_nn::io::Arrays;
use highwater_nn::optim::{Optimizer, allow_no_parameters};
use highwater_tensor::{
    Device, Error, GradientHook, GradientPass, Gradients, HookGuard, Parameter, Result, Tensor,
    hook_gradients,
};
use highwater_tracking::{Phase, phase};

use crate::agree::{Entry, agree};
use crate::collective::{Reduce, SliceMut};
use crate::world::World;

mod broadcast;
mod error;
mod pass;
mod plan;
mod reducer;
mod region;
mod state;
mod status;
#[cfg(test)]
mod tests;

pub use error::ParallelError;
pub use status::Stage;

use broadcast::{copy_from, copy_from_owners};
use pass::Pass;
use plan::{Bucket, Plan, Size, owners};
use reducer::JobData;
pub(crate) use reducer::Reducer;
use region::Region;

/// The op of errors.
const OP: &str = "data_parallel";

/// The size of a bucket, in bytes, unless [`DataParallel::bucket_bytes`] changes it.
const BUCKET_BYTES: usize = 25 << 20;

/// What the ranks divide among themselves instead of keeping copies (Rajbhandari et al. 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shard {
    /// Nothing: each rank keeps all gradients and the whole state of the optimizer.
    #[default]
    None,
    /// The state of the optimizer (ZeRO-1). Each rank updates its own parameters and sends them to the others.
    Optimizer,
    /// Gradients and the state of the optimizer (ZeRO-2). Each rank keeps the sums of its own parameters' gradients.
    Gradients,
}

impl Shard {
    /// The names of all values, for command lines.
    pub const NAMES: [&str; 3] = ["none", "optimizer", "gradients"];

    /// Returns the value of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let values = [Self::None, Self::Optimizer, Self::Gradients];
        Self::NAMES.into_iter().zip(values).find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns the name of the value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

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

/// The state that passes share with the optimizer.
#[derive(Debug)]
struct Shared {
    world: World,
    shard: Shard,
    reduce: Reduce,
    device: Device,
    parameters: Vec<(String, Parameter)>,
    sizes: Vec<Size>,
    /// The rank that owns each parameter.
    owners: Vec<usize>,
    planning: Mutex<Planning>,
    /// Whether a backward pass runs.
    in_pass: AtomicBool,
}

#[derive(Debug)]
struct Planning {
    plan: Arc<Plan>,
    bucket_bytes: usize,
    /// Whether the plan has the order of a pass.
    is_observed: bool,
}

thread_local! {
    /// Whether backward passes of this thread leave their gradients alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs backward passes of this rank alone: they return its own gradients. For passes that not all ranks run.
///
/// ```
/// use highwater::distributed::no_sync;
/// # fn diagnose() -> highwater::Result<()> { Ok(()) }
/// no_sync(diagnose)?;
/// # Ok::<(), highwater::Error>(())
/// ```
pub fn no_sync<T>(run: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _restore = Restore(ALONE.replace(true));
    run()
}

impl Shared {
    fn new(world: &World, shard: Shard, parameters: Vec<(String, Parameter)>) -> Result<Arc<Self>> {
        // A parameter that several layers share is listed under each path.
        let mut seen = HashSet::new();
        let mut parameters = parameters;
        parameters.retain(|(_, parameter)| seen.insert(parameter.address()));
        let device = match parameters.first() {
            Some((_, parameter)) => parameter.value().device().clone(),
            None => {
                let (op, argument, expected) = (OP, "parameters", "at least one");
                return Err(Error::BadArgument { op, argument, expected, got: "none".into() });
            }
        };
        let mut sizes = Vec::with_capacity(parameters.len());
        for (path, parameter) in &parameters {
            let value = parameter.value();
            if *value.device() != device || !(device.is_dry() || is_on_host(&value)) {
                let (parameter, device) = (path.clone(), value.device().to_string());
                return Err(ParallelError::Device { parameter, device }.into());
            }
            sizes.push(Size { elements: value.elements(), dtype: value.dtype().computed_as() });
        }
        let owners = owners(&sizes, world.size());
        let order = (0..sizes.len()).rev().collect();
        let sharded = (shard == Shard::Gradients).then_some((&owners[..], world.size()));
        let plan = Arc::new(Plan::new(&sizes, order, BUCKET_BYTES, sharded));
        let planning = Mutex::new(Planning { plan, bucket_bytes: BUCKET_BYTES, is_observed: false });
        if world.size() > 1 {
            let start = |error| Error::Custom { op: OP, message: format!("cannot start a thread: {error}") };
            world.reducer().map_err(start)?;
        }
        let (world, reduce, in_pass) = (world.clone(), Reduce::default(), AtomicBool::new(false));
        Ok(Arc::new(Self {
            world,
            shard,
            reduce,
            device,
            parameters,
            sizes,
            owners,
            planning,
            in_pass,
        }))
    }

    fn planning(&self) -> MutexGuard<'_, Planning> {
        self.planning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.planning().plan)
    }

    fn sharded_owners(&self) -> Option<(&[usize], usize)> {
        (self.shard == Shard::Gradients).then_some((&self.owners[..], self.world.size()))
    }

    fn owns(&self, parameter: usize) -> bool {
        self.shard == Shard::None || self.owners[parameter] == self.world.rank()
    }

    fn own_parameters(&self) -> Vec<(String, Parameter)> {
        let all = self.parameters.iter().enumerate();
        all.filter(|(index, _)| self.owns(*index)).map(|(_, own)| own.clone()).collect()
    }

    /// Only worlds of several ranks have passes, and they have started their reducer.
    fn reducer(&self) -> &Reducer {
        self.world.reducer().expect("it was started with the optimizer")
    }

    /// The memory for the values of other ranks while a bucket is summed, in bytes.
    fn workspace_bytes(&self, plan: &Plan) -> usize {
        plan.buckets.iter().map(|bucket| self.bucket_workspace(bucket)).max().unwrap_or(0)
    }

    fn bucket_workspace(&self, bucket: &Bucket) -> usize {
        if bucket.parts.is_empty() {
            return self.reduce.workspace_bytes(bucket.elements, bucket.dtype, self.world.size());
        }
        let own = bucket.parts.get(self.world.rank()).map_or(0, Range::len);
        own * (self.world.size() - 1) * bucket.dtype.size()
    }

    fn job_data(&self, bucket: &Bucket, region: Arc<Region>, workspace: Arc<Region>) -> JobData {
        let (elements, parts) = (bucket.elements, bucket.parts.clone());
        let (workspace_bytes, reduce) = (self.bucket_workspace(bucket), self.reduce);
        JobData { region, elements, parts, workspace, workspace_bytes, reduce }
    }

    /// Adopts rank 0's order of gradients after the first pass.
    fn observe(&self, plan: &Plan, order: &[usize]) -> Result<(), ParallelError> {
        let mut planning = self.planning();
        if std::mem::replace(&mut planning.is_observed, true) {
            return Ok(());
        }
        let is_missing = |parameter: &usize| !order.contains(parameter);
        let rest = plan.order.iter().copied().filter(is_missing);
        let mut order: Vec<usize> = order.iter().copied().chain(rest).collect();
        if !self.world.is_rehearsal() {
            let mut bytes: Vec<u8> =
                order.iter().flat_map(|parameter| (*parameter as u32).to_le_bytes()).collect();
            self.world.collective().broadcast(SliceMut::Bytes(&mut bytes), 0)?;
            let (numbers, _) = bytes.as_chunks::<4>();
            order = numbers.iter().map(|number| u32::from_le_bytes(*number) as usize).collect();
        }
        if order != plan.order {
            let plan = Plan::new(&self.sizes, order, planning.bucket_bytes, self.sharded_owners());
            planning.plan = Arc::new(plan);
        }
        Ok(())
    }

    fn end_pass(&self) {
        self.in_pass.store(false, Ordering::Release);
    }

    /// Tells the other ranks the stage of this rank between passes.
    fn meet(&self, stage: Stage) -> Result<(), ParallelError> {
        status::exchange(self.world.collective(), stage, &[]).map(drop)
    }
}

fn is_on_host(tensor: &Tensor) -> bool {
    tensor.view().storage().allocation().allocator().memory_kind().is_host_accessible()
}

/// The hook of the parameters.
#[derive(Debug)]
struct Hook(Arc<Shared>);

impl GradientHook for Hook {
    fn begin(&self) -> Result<Option<Box<dyn GradientPass>>> {
        if ALONE.get() {
            return Ok(None);
        }
        if self.0.in_pass.swap(true, Ordering::Acquire) {
            let (op, argument, expected) = ("backward", "pass", "the only one of these parameters at a time");
            return Err(Error::BadArgument { op, argument, expected, got: "two passes".into() });
        }
        Ok(Some(Box::new(Pass::new(Arc::clone(&self.0)))))
    }
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
            agree(&shared.world, &entries).map_err(ParallelError::from)?;
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
            let order = planning.plan.order.clone();
            let plan = Plan::new(&self.shared.sizes, order, bytes, self.shared.sharded_owners());
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
        step(self).inspect_err(|error| {
            // Errors of the exchange itself reach all ranks.
            if self.shared.world.size() > 1 && ParallelError::of(error).is_none() {
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
