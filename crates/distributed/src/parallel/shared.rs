//! The state that backward passes share with the optimizer, and the hook that starts the passes.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bfc_core::{ThreadVariable, thread_scoped};
use highwater_tensor::{DType, Device, Error, GradientHook, GradientPass, Parameter, Result, Tensor};

use super::assignment::{Bucket, BucketAssignment, Size, owners};
use super::fingerprint::Settings;
use super::pass::Pass;
use crate::collective::{SliceMut, SumOrder};
use crate::reduction::{JobData, ParallelError, Reducer, Region, Stage, exchange};
use crate::shard::Shard;
use crate::world::World;

/// The op of errors.
pub(super) const OP: &str = "data_parallel";

/// The size of a bucket, in bytes, unless [`DataParallel::bucket_bytes`](super::DataParallel::bucket_bytes) changes it.
const BUCKET_BYTES: usize = 25 << 20;

/// The state that passes share with the optimizer.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) world: World,
    pub(super) shard: Shard,
    pub(super) device: Device,
    pub(super) parameters: Vec<(String, Parameter)>,
    /// The size of each gradient as the optimizer gets it.
    sizes: Vec<Size>,
    /// The rank that owns each parameter.
    pub(super) owners: Vec<usize>,
    pub(super) bucketing: Mutex<Bucketing>,
    /// Whether a backward pass runs.
    pub(super) in_pass: AtomicBool,
    /// The options that all ranks must share.
    pub(super) settings: Mutex<Arc<Settings>>,
}

#[derive(Debug)]
pub(super) struct Bucketing {
    pub(super) assignment: Arc<BucketAssignment>,
    pub(super) bucket_bytes: usize,
    /// The element type in which ranks exchange gradients that are computed in f32.
    pub(super) exchange: DType,
    pub(super) reduce: SumOrder,
    /// Whether the assignment has the order of a pass.
    pub(super) is_observed: bool,
}

thread_scoped! {
    /// Whether backward passes of this thread leave their gradients alone.
    static IS_ALONE: bool = false;
}

/// Runs backward passes of this rank alone: they return its own gradients.
///
/// The optimizer's step sums these gradients over all ranks, also if other passes were added to them. So all passes of a
/// step but the last, or all of them, may run without communication. Gradients that are only looked at may be dropped.
///
/// ```
/// use highwater::prelude::*;
/// use highwater::distributed::{World, no_sync};
///
/// let (world, device) = (World::from_env()?, Device::cpu()?);
/// let model = Linear::new(&device, 4, 2, &Rng::new(0))?;
/// let mut optimizer = world.data_parallel(AdamW::new(model.parameters(), 1e-3)?)?;
/// let loss = || model.forward(&Tensor::ones(&device, [8, 4])?)?.square()?.mean_all();
/// let mut gradients = no_sync(|| loss()?.backward())?;
/// gradients.accumulate(&mut loss()?.backward()?)?;
/// gradients.scale(0.5)?;
/// optimizer.step(gradients)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn no_sync<T>(run: impl FnOnce() -> T) -> T {
    IS_ALONE.within(true, run)
}

impl Shared {
    pub(super) fn new(
        world: &World,
        shard: Shard,
        parameters: Vec<(String, Parameter)>,
    ) -> Result<Arc<Self>> {
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
            if *value.device() != device
                || !(device.is_dry() || is_on_host(&value) || device.is_gpu() && world.has_nccl())
            {
                let (parameter, device) = (path.clone(), value.device().to_string());
                return Err(ParallelError::Device { parameter, device }.into());
            }
            sizes.push(Size { elements: value.elements(), dtype: value.dtype().computed_as() });
        }
        let owners = owners(&sizes, |index| parameters[index].1.is_frozen(), world.size());
        // Backward passes reach the last layers first, and frozen parameters never.
        let (frozen, trained): (Vec<usize>, Vec<usize>) =
            (0..sizes.len()).rev().partition(|index| parameters[*index].1.is_frozen());
        let (expected, order) = (trained.len(), [trained, frozen].concat());
        let sharded = (shard == Shard::Gradients).then_some((&owners[..], world.size()));
        let assignment = Arc::new(BucketAssignment::new(&sizes, order, expected, BUCKET_BYTES, sharded));
        let bucketing = Mutex::new(Bucketing {
            assignment,
            bucket_bytes: BUCKET_BYTES,
            exchange: DType::F32,
            reduce: SumOrder::default(),
            is_observed: false,
        });
        if world.size() > 1 {
            let start = |error| Error::Custom { op: OP, message: format!("cannot start a thread: {error}") };
            world.reducer().map_err(start)?;
        }
        let (world, in_pass, settings) = (world.clone(), AtomicBool::new(false), Mutex::default());
        Ok(Arc::new(Self { world, shard, device, parameters, sizes, owners, bucketing, in_pass, settings }))
    }

    pub(super) fn bucketing(&self) -> MutexGuard<'_, Bucketing> {
        self.bucketing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assignment(&self) -> Arc<BucketAssignment> {
        Arc::clone(&self.bucketing().assignment)
    }

    /// Changes the options of buckets, and assigns the gradients to buckets again.
    pub(super) fn assign_again(&self, change: impl FnOnce(&mut Bucketing)) {
        let mut bucketing = self.bucketing();
        change(&mut bucketing);
        let (order, expected) = (bucketing.assignment.order.clone(), bucketing.assignment.expected);
        bucketing.assignment = Arc::new(self.assigned(&bucketing, order, expected));
    }

    /// Assigns the gradients to buckets in this order. `expected` of them are likely in a pass.
    fn assigned(&self, bucketing: &Bucketing, order: Vec<usize>, expected: usize) -> BucketAssignment {
        let sizes: Vec<_> = self.sizes.iter().map(|size| size.exchanged_as(bucketing.exchange)).collect();
        let owners = self.sharded_owners();
        BucketAssignment::new(&sizes, order, expected, bucketing.bucket_bytes, owners)
    }

    pub(super) fn reduce(&self) -> SumOrder {
        match self.shard {
            Shard::None | Shard::Optimizer => self.bucketing().reduce,
            Shard::Gradients => SumOrder::Ordered,
        }
    }

    /// Returns the elements that each rank sums, if these are its own gradients. Otherwise all ranks sum equal parts.
    fn parts<'a>(&self, bucket: &'a Bucket) -> &'a [Range<usize>] {
        // NCCL sums along a ring, without copies of the values of all ranks.
        if self.device.is_gpu() || bucket.is_balanced() { &bucket.parts } else { &[] }
    }

    fn sharded_owners(&self) -> Option<(&[usize], usize)> {
        (self.shard == Shard::Gradients).then_some((&self.owners[..], self.world.size()))
    }

    pub(super) fn owns(&self, parameter: usize) -> bool {
        self.shard == Shard::None || self.owners[parameter] == self.world.rank()
    }

    pub(super) fn own_parameters(&self) -> Vec<(String, Parameter)> {
        let all = self.parameters.iter().enumerate();
        all.filter(|(index, _)| self.owns(*index)).map(|(_, own)| own.clone()).collect()
    }

    /// Only worlds of several ranks have passes, and they have started their reducer.
    pub(super) fn reducer(&self) -> &Reducer {
        self.world.reducer().expect("it was started with the optimizer")
    }

    /// The memory for the values of other ranks while a bucket is summed, in bytes.
    pub(super) fn workspace_bytes(&self, assignment: &BucketAssignment) -> usize {
        assignment.buckets.iter().map(|bucket| self.bucket_workspace(bucket)).max().unwrap_or(0)
    }

    pub(super) fn bucket_workspace(&self, bucket: &Bucket) -> usize {
        // NCCL has memory of its own.
        if self.device.is_gpu() {
            return 0;
        }
        let parts = self.parts(bucket);
        if parts.is_empty() {
            return self.reduce().workspace_bytes(bucket.elements, bucket.dtype, self.world.size());
        }
        let own = parts.get(self.world.rank()).map_or(0, Range::len);
        own * (self.world.size() - 1) * bucket.dtype.size()
    }

    pub(super) fn job_data(
        &self,
        bucket: &Bucket,
        region: Arc<Region>,
        workspace: Option<Arc<Region>>,
    ) -> JobData {
        let (elements, parts) = (bucket.elements, self.parts(bucket).to_vec());
        let workspace = workspace.map(|workspace| (workspace, self.bucket_workspace(bucket)));
        JobData { region, elements, parts, workspace, reduce: self.reduce(), stream: self.device.stream() }
    }

    /// Adopts rank 0's order of gradients after the first pass.
    pub(super) fn observe(
        &self,
        assignment: &BucketAssignment,
        order: &[usize],
    ) -> Result<(), ParallelError> {
        let mut bucketing = self.bucketing();
        if std::mem::replace(&mut bucketing.is_observed, true) {
            return Ok(());
        }
        let is_missing = |parameter: &usize| !order.contains(parameter);
        let rest = assignment.order.iter().copied().filter(is_missing);
        let mut expected = order.len() as u32;
        let mut order: Vec<usize> = order.iter().copied().chain(rest).collect();
        if !self.world.is_rehearsal() {
            // Jobs of another optimizer's pass may be on their way.
            self.reducer().flush();
            let numbers = order.iter().map(|parameter| *parameter as u32).chain([expected]);
            let mut bytes: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
            self.world.collective().broadcast(SliceMut::Bytes(&mut bytes), 0)?;
            let (numbers, _) = bytes.as_chunks::<4>();
            order = numbers.iter().map(|number| u32::from_le_bytes(*number) as usize).collect();
            expected = order.pop().map_or(0, |expected| expected as u32);
        }
        let expected = expected as usize;
        if (&order, expected) != (&assignment.order, assignment.expected) {
            bucketing.assignment = Arc::new(self.assigned(&bucketing, order, expected));
        }
        Ok(())
    }

    pub(super) fn end_pass(&self) {
        self.in_pass.store(false, Ordering::Release);
    }

    /// Tells the other ranks the stage of this rank between passes, and some flags. Returns which flags any rank has set.
    pub(super) fn meet(self: &Arc<Self>, stage: Stage, flags: &[bool]) -> Result<Vec<bool>, ParallelError> {
        if self.world.is_rehearsal() {
            return Ok(flags.to_vec());
        }
        exchange(self.world.collective(), stage, &self.fingerprint(), flags)
    }

    /// Returns whether the flag is set on any rank. See [`meet`](Self::meet).
    pub(super) fn meet_any(self: &Arc<Self>, stage: Stage, flag: bool) -> Result<bool, ParallelError> {
        Ok(self.meet(stage, &[flag])?.contains(&true))
    }

    /// Marks the beginning of a pass, which is the only one.
    pub(super) fn begin_pass(&self) -> Result<()> {
        if self.in_pass.swap(true, Ordering::Acquire) {
            let (op, argument, expected) = ("backward", "pass", "the only one of these parameters at a time");
            return Err(Error::BadArgument { op, argument, expected, got: "two passes".into() });
        }
        Ok(())
    }
}

fn is_on_host(tensor: &Tensor) -> bool {
    tensor.view().storage().allocation().allocator().memory_kind().is_host_accessible()
}

/// The hook of the parameters.
#[derive(Debug)]
pub(super) struct Hook(pub(super) Arc<Shared>);

impl GradientHook for Hook {
    fn begin(&self) -> Result<Option<Box<dyn GradientPass>>> {
        if IS_ALONE.get() {
            return Ok(None);
        }
        Ok(Some(Box::new(Pass::begin(Arc::clone(&self.0))?)))
    }
}
