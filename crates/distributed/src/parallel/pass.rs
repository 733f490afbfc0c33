//! A backward pass whose gradients are summed over all ranks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use bfc_core::{Allocator, Category};
use highwater_tensor::backend::kernels;
use highwater_tensor::{DType, GradientPass, Gradients, OpContext, Parameter, Result, Scalar, Tensor};

use super::assignment::BucketAssignment;
use super::shared::Shared;
use crate::agree::Fingerprint;
use crate::reduction::{Done, Job, ParallelError, Region, Stage};
use crate::shard::Shard;

/// The ops that own the memory.
const BUCKET: &str = "gradient_bucket";
const EXCHANGE: &str = "gradient_exchange";

/// The pass: buckets fill, then the reducer sums them.
pub(crate) struct Pass {
    shared: Arc<Shared>,
    /// The settings of this rank, which all ranks must share.
    fingerprint: Fingerprint,
    assignment: Arc<BucketAssignment>,
    buckets: Vec<Filling>,
    /// The buckets that the reducer has got, and those that it has returned. Both go in the order of the assignment.
    submitted: usize,
    received: usize,
    /// The memory for the values of other ranks, from the first bucket to the end of the pass.
    workspace: Option<Arc<Region>>,
    /// The parameters in the order of their gradients.
    order: Vec<usize>,
    gradients: Gradients,
    /// The results of the submitted jobs that have not been received.
    results: VecDeque<Receiver<Done>>,
}

/// A bucket of the pass.
#[derive(Default)]
struct Filling {
    region: Option<Arc<Region>>,
    blocks: Vec<Arc<dyn Allocator>>,
    /// By slot.
    gradients: Vec<Option<Tensor>>,
    /// Whether the gradient of a slot comes from the pass. Zeros take the place of a missing one.
    present: Vec<bool>,
}

impl Pass {
    /// Starts a pass; fails if another one runs.
    pub(super) fn begin(shared: Arc<Shared>) -> Result<Self> {
        shared.begin_pass()?;
        let fingerprint = shared.fingerprint();
        let assignment = shared.assignment();
        let buckets = assignment.buckets.iter().map(|_| Filling::default()).collect();
        shared.reducer().begin();
        Ok(Self {
            shared,
            fingerprint,
            assignment,
            buckets,
            submitted: 0,
            received: 0,
            workspace: None,
            order: Vec::new(),
            gradients: Gradients::default(),
            results: VecDeque::new(),
        })
    }

    /// Replaces the gradients that only single ranks have computed with their means over all ranks.
    pub(super) fn sum_local(shared: &Arc<Shared>, gradients: &mut Gradients) -> Result<()> {
        let is_local = |(_, parameter): &(String, Parameter)| gradients.is_local(parameter);
        let local: Vec<bool> = shared.parameters.iter().map(is_local).collect();
        // If a gradient is local on any rank, all ranks take part with theirs.
        let local = shared.meet(Stage::Sync, &local)?;
        let mut pass = Box::new(Self::begin(Arc::clone(shared))?);
        let assignment = Arc::clone(&pass.assignment);
        for &index in assignment.order.iter().filter(|index| local[**index]) {
            let (_, parameter) = &shared.parameters[index];
            if let Some(gradient) = gradients.take_part_of_mean(parameter)? {
                pass.ready(index, gradient)?;
            }
        }
        gradients.accumulate(&mut pass.end()?)
    }

    /// Waits for the sums of all buckets, and returns the means.
    fn end(&mut self) -> Result<Gradients> {
        while self.submitted < self.buckets.len() {
            let number = self.submitted;
            if self.buckets[number].region.is_some() {
                self.fill(number)?;
                self.submit(number + 1 == self.buckets.len());
            } else {
                self.receive_until(number)?;
                self.submit(true);
                self.receive_until(number + 1)?;
            }
        }
        self.receive_until(self.buckets.len())?;
        self.workspace = None;
        let mut gradients = std::mem::take(&mut self.gradients);
        gradients.scale(1.0 / self.shared.world.size() as f64)?;
        Ok(gradients)
    }

    /// Returns the bucket, with memory.
    fn open(&mut self, number: usize) -> Result<&mut Filling> {
        if self.buckets[number].region.is_none() {
            if self.shared.shard == Shard::Gradients {
                // At most two buckets: this one and the last that was submitted.
                self.receive_until(self.submitted.saturating_sub(1))?;
            }
            if self.workspace.is_none() && !self.shared.device.is_gpu() {
                let (device, bytes) = (&self.shared.device, self.shared.workspace_bytes(&self.assignment));
                self.workspace =
                    Some(Region::new(EXCHANGE, device, bytes, DType::U8, Category::Communication)?);
            }
            let bucket = &self.assignment.buckets[number];
            let ranges = bucket.slots.iter().map(|slot| slot.offset..slot.offset + slot.elements);
            let (region, blocks) =
                Region::with_blocks(BUCKET, &self.shared.device, bucket.elements, bucket.dtype, ranges)?;
            self.buckets[number].blocks = blocks;
            self.buckets[number].gradients = bucket.slots.iter().map(|_| None).collect();
            self.buckets[number].present = vec![false; bucket.slots.len()];
            self.buckets[number].region = Some(region);
        }
        Ok(&mut self.buckets[number])
    }

    /// Gives a bucket to the reducer, or sums it on this thread if there is nothing to do meanwhile.
    fn send(&mut self, number: usize, is_agreed: bool, is_last: bool) {
        let (bucket, filling) = (&self.assignment.buckets[number], &self.buckets[number]);
        let data = filling.region.clone();
        let mut present = filling.present.clone();
        present.resize(bucket.slots.len(), false);
        let (reply, result) = mpsc::channel();
        let job = Job {
            // There are fewer buckets than parameters.
            stage: Stage::Bucket(number as u32),
            fingerprint: self.fingerprint.clone(),
            present,
            data: data.map(|region| self.shared.job_data(bucket, region, self.workspace.clone())),
            is_agreed,
            reply,
        };
        match is_last {
            true => self.shared.reducer().run(job),
            false => self.shared.reducer().submit(job),
        }
        self.results.push_back(result);
    }

    /// Gives the next bucket to the reducer. A bucket with memory is full.
    fn submit(&mut self, is_last: bool) {
        self.send(self.submitted, false, is_last);
        self.submitted += 1;
    }

    /// Waits for the oldest result. If the reducer has ended, none arrives.
    fn wait(&mut self) -> Result<Done> {
        let result = self.results.pop_front().and_then(|result| result.recv().ok());
        result.ok_or_else(|| ParallelError::ended(self.shared.world.rank()).into())
    }

    /// Waits for the sums of all buckets before `end`, and keeps their gradients.
    fn receive_until(&mut self, end: usize) -> Result<()> {
        while self.received < end {
            let number = self.received;
            self.received += 1;
            let done = self.wait()?;
            let present = done.present?;
            if !done.is_summed {
                // Only other ranks have gradients of this bucket. No other job is on its way: see `finish`.
                self.fill(number)?;
                self.send(number, true, true);
                let _ = self.wait()?.present?;
            }
            self.keep(number, &present)?;
        }
        Ok(())
    }

    /// Sets the missing gradients of a bucket to zeros.
    fn fill(&mut self, number: usize) -> Result<()> {
        self.open(number)?;
        let (shared, bucket) = (&self.shared, &self.assignment.buckets[number]);
        let filling = &mut self.buckets[number];
        for ((gradient, slot), block) in filling.gradients.iter_mut().zip(&bucket.slots).zip(&filling.blocks)
        {
            if gradient.is_none() {
                let (_, parameter) = &shared.parameters[slot.parameter];
                let ctx = OpContext::create(BUCKET, &shared.device, block, Category::Gradient);
                let mut zeros = ctx.output(parameter.value().shape(), bucket.dtype)?;
                ctx.compute(kernels::Fill { value: Scalar::Float(0.0), out: zeros.view_mut() })?;
                *gradient = Some(zeros.finish());
            }
        }
        Ok(())
    }

    /// Moves the gradients of a summed bucket to the result.
    fn keep(&mut self, number: usize, present: &[bool]) -> Result<()> {
        let filling = std::mem::take(&mut self.buckets[number]);
        let slots = filling.gradients.into_iter().zip(&self.assignment.buckets[number].slots).zip(present);
        for ((gradient, slot), is_present) in slots {
            let Some(gradient) = gradient.filter(|_| *is_present) else { continue };
            let (_, parameter) = &self.shared.parameters[slot.parameter];
            let dtype = gradient.dtype().computed_as();
            let copied = || {
                // The bucket returns to the pool.
                let memory = self.shared.device.default_allocator()?;
                copy_to("keep_gradient", &self.shared, memory, &gradient, dtype)
            };
            match self.shared.shard {
                Shard::Gradients if self.shared.owns(slot.parameter) => {
                    let own = copied()?;
                    self.gradients.insert_owned(parameter, own, self.shared.world.size())?;
                }
                Shard::Gradients => {}
                // Sums of 16 bits return to f32.
                Shard::None | Shard::Optimizer if gradient.dtype() != dtype => {
                    self.gradients.insert(parameter, copied()?)?;
                }
                Shard::None | Shard::Optimizer => self.gradients.insert(parameter, gradient)?,
            }
        }
        Ok(())
    }
}

impl GradientPass for Pass {
    fn place(&mut self, parameter: usize) -> Result<Option<Arc<dyn Allocator>>> {
        let (_, of) = &self.shared.parameters[parameter];
        let (bucket, slot) = self.assignment.places[parameter];
        // Gradients of other types than their sums are converted, as are those of parameters that this rank has converted: the
        // other ranks name the difference.
        if of.value().dtype() != self.assignment.buckets[bucket].dtype {
            return Ok(None);
        }
        Ok(Some(Arc::clone(&self.open(bucket)?.blocks[slot])))
    }

    fn ready(&mut self, parameter: usize, mut gradient: Tensor) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        self.order.push(parameter);
        let (number, slot) = self.assignment.places[parameter];
        let dtype = self.assignment.buckets[number].dtype;
        let filling = self.open(number)?;
        let block = &filling.blocks[slot];
        let is_in_place = Arc::ptr_eq(gradient.storage().allocation().allocator(), block);
        // A gradient that other tensors share must not change.
        if !is_in_place || !gradient.owns_buffer() {
            gradient = copy_to(BUCKET, &shared, block, &gradient, dtype)?;
        }
        filling.gradients[slot] = Some(gradient);
        filling.present[slot] = true;
        while self.buckets.get(self.submitted).is_some_and(Filling::is_full) {
            self.submit(self.submitted + 1 == self.buckets.len());
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Gradients> {
        let gradients = self.end()?;
        self.shared.observe(&self.assignment, &self.order)?;
        Ok(gradients)
    }
}

impl Filling {
    fn is_full(&self) -> bool {
        self.region.is_some() && self.present.iter().all(|is_present| *is_present)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // The reducer still uses the memory of submitted buckets.
        while let Some(result) = self.results.pop_front() {
            drop(result.recv());
        }
        self.shared.end_pass();
    }
}

/// Copies a gradient to other memory.
fn copy_to(
    op: &'static str,
    shared: &Shared,
    memory: &Arc<dyn Allocator>,
    gradient: &Tensor,
    dtype: DType,
) -> Result<Tensor> {
    let ctx = OpContext::create(op, &shared.device, memory, Category::Gradient);
    let mut copy = ctx.output(gradient.shape(), dtype)?;
    ctx.compute(kernels::Copy { input: gradient.view(), out: copy.view_mut() })?;
    Ok(copy.finish())
}
