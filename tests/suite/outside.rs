//! A custom op and a custom allocator that use only the public facade.

use bfc_core::AddressSpace;
use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex, PoisonError};

use highwater::alloc::{
    AddressOnlyMemory, AllocError, Allocator, BfcAllocator, BfcConfig, Block, BlockError, Bytes, MemoryKind,
    OomReport, PoolId, Request, Stats, Verdict,
};
use highwater::prelude::*;
use highwater::tracking::{Sizes, TrackingAllocator};
use highwater::{
    Error, GradCheck, GradCheckError, Op, OpContext, Phase, Result, Saved, apply, check_gradients,
    memory_report,
};

/// out[i] = x[i]^power, a custom op.
#[derive(Debug)]
struct Power {
    power: i32,
    /// The factor in front of the gradient: `power` if it is right.
    slope: f64,
}

impl Power {
    fn of(power: i32) -> Self {
        Self { power, slope: f64::from(power) }
    }
}

impl Op for Power {
    fn name(&self) -> &'static str {
        "power"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        if inputs[0].dtype() != DType::F64 {
            return Err(Error::UnsupportedDType { op: self.name(), dtype: inputs[0].dtype() });
        }
        ctx.save(inputs[0]);
        let x = inputs[0].contiguous()?;
        let mut out = ctx.output(x.shape(), DType::F64)?;
        // Scratch memory, which the accounts show as temporary.
        let mut scratch = ctx.temp(x.shape(), DType::F64)?;
        if let (Some(x), Some(scratch), Some(out)) =
            (x.view().host_contiguous::<f64>(), scratch.host_mut::<f64>(), out.host_mut::<f64>())
        {
            scratch.copy_from_slice(x);
            out.iter_mut().zip(scratch).for_each(|(out, x)| *out = x.powi(self.power));
        }
        Ok(out.finish())
    }

    fn backward(&self, _: &OpContext<'_>, saved: &mut Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
        let lower = apply(Self::of(self.power - 1), &[saved.tensor(0)?])?;
        Ok(vec![Some(lower.mul_scalar(self.slope)?.mul(&grad)?)])
    }
}

fn runtime() -> Runtime {
    Runtime::builder().threads(1).build().unwrap()
}

#[test]
fn a_custom_op_computes_with_a_correct_gradient() {
    let device = runtime().cpu().unwrap();
    let x = Tensor::from_slice(&device, &[0.5, -1.5, 2.0, 1.0], [2, 2]).unwrap();
    let cubes = apply(Power::of(3), &[&x]).unwrap();
    assert_eq!(cubes.to_vec::<f64>().unwrap(), [0.125, -3.375, 8.0, 1.0]);
    // On a transposed input, and between built-in ops.
    let function = |inputs: &[Tensor]| apply(Power::of(3), &[&inputs[0].t()?])?.add(&inputs[0]);
    check_gradients(function, &[x], GradCheck::for_dtype(DType::F64)).unwrap();
}

#[test]
fn a_wrong_gradient_from_outside_is_found() {
    let x = Tensor::from_slice(&runtime().cpu().unwrap(), &[0.5, -1.5], [2]).unwrap();
    let wrong = |inputs: &[Tensor]| apply(Power { power: 3, slope: 2.9 }, &[&inputs[0]]);
    let error = check_gradients(wrong, &[x], GradCheck::for_dtype(DType::F64)).unwrap_err();
    assert!(matches!(error, GradCheckError::Differs { input: 0, element: 0, .. }), "{error}");
}

#[test]
fn a_custom_op_is_accounted_in_both_phases() {
    let device = runtime().cpu().unwrap();
    let x = Tensor::from_slice(&device, &[0.5; 100], [100]).unwrap().requiring_grad().unwrap();
    let loss = {
        let _scope = module("outside");
        apply(Power::of(2), &[&x]).unwrap().sum_all().unwrap()
    };
    let gradients = loss.backward().unwrap();
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0; 100]);
    let report = memory_report(&device).unwrap();
    let row = |phase| report.places.iter().find(|place| place.op == "power" && place.phase == phase).unwrap();
    let (forward, backward) = (row(Phase::Forward), row(Phase::Backward));
    assert_eq!((&forward.scope, &backward.scope), (&Some("outside".to_owned()), &Some("outside".to_owned())));
    assert_eq!((forward.calls, forward.total_bytes, forward.temporary_bytes), (1, 2048, 1024));
    assert_eq!((backward.calls, backward.live_bytes), (1, 1024));
}

#[test]
fn a_custom_op_makes_the_same_requests_in_a_dry_run() {
    let runtime = runtime();
    let peak = |device: &Device| {
        let x = Tensor::zeros_of(device, [1000], DType::F64).unwrap().requiring_grad().unwrap();
        apply(Power::of(3), &[&x]).unwrap().sum_all().unwrap().backward().unwrap();
        device.default_allocator().unwrap().stats().peak_bytes_in_use
    };
    assert_eq!(peak(&runtime.dry().unwrap()), peak(&runtime.cpu().unwrap()));
}

const GRANULE: u64 = 64;

/// One granule of the arena. The alignment is that of every block.
#[repr(align(64))]
struct Granule(
    #[expect(dead_code, reason = "tensors write it through the address")] UnsafeCell<[u8; GRANULE as usize]>,
);

/// A minimal allocator: consecutive blocks in a fixed arena, which starts over when it is empty.
struct Bump {
    arena: Box<[Granule]>,
    id: PoolId,
    state: Mutex<BumpUse>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BumpUse {
    next: u64,
    live: u64,
    allocs: u64,
}

impl Bump {
    fn new(bytes: u64) -> Arc<Self> {
        let arena = (0..bytes / GRANULE).map(|_| Granule(UnsafeCell::new([0; GRANULE as usize]))).collect();
        Arc::new(Self { arena, id: PoolId::next(), state: Mutex::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, BumpUse> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Bump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bump").field("state", &*self.state()).finish_non_exhaustive()
    }
}

// SAFETY: the arena is written only through blocks, which never overlap; a lock protects the other fields.
unsafe impl Sync for Bump {}

// SAFETY: blocks lie in the arena, which lives as long as the allocator and is initialized. Each starts where the last
// one ended, at a multiple of the arena's alignment, until all are freed.
unsafe impl Allocator for Bump {
    fn name(&self) -> &str {
        "bump"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn address_space(&self) -> Option<AddressSpace> {
        None
    }

    fn allocate(&self, request: &Request<'_>) -> std::result::Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block::EMPTY);
        }
        let limit = self.arena.len() as u64 * GRANULE;
        let mut state = self.state();
        let free = limit - state.next;
        let bytes = request.bytes.div_ceil(GRANULE).saturating_mul(GRANULE);
        if bytes > free || request.alignment > GRANULE {
            let mut report = OomReport::new(self.name(), request, Verdict::Exhausted);
            (report.limit, report.in_use, report.free, report.largest_free) =
                (Some(limit), state.next, free, free);
            return Err(AllocError::OutOfMemory(Box::new(report)));
        }
        let address = self.arena.as_ptr().expose_provenance() as u64 + state.next;
        *state = BumpUse { next: state.next + bytes, live: state.live + 1, allocs: state.allocs + 1 };
        Ok(Block { address, bytes, id: state.allocs, chunk: 0, pool: self.id })
    }

    unsafe fn deallocate(&self, block: Block) -> std::result::Result<(), BlockError> {
        if block.is_empty() {
            return Ok(());
        }
        if block.pool != self.id {
            return Err(BlockError::Foreign { block });
        }
        let mut state = self.state();
        state.live -= 1;
        if state.live == 0 {
            state.next = 0;
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        let state = self.state();
        let mut stats = Stats::default();
        (stats.num_allocs, stats.live_allocs, stats.bytes_in_use) = (state.allocs, state.live, state.next);
        stats
    }

    fn tracks_sizes(&self) -> bool {
        true
    }
}

#[test]
fn tensors_live_in_an_allocator_from_outside_and_compute() {
    let bump = Bump::new(64 << 10);
    let device = runtime().cpu().unwrap();
    let alloc = device.with_allocator(bump.clone()).unwrap();
    let x = Tensor::new(&alloc, [10, 10]).unwrap();
    let y = Tensor::full(&alloc, [10, 10], 2.0).unwrap();
    assert_eq!((bump.stats().live_allocs, bump.stats().bytes_in_use), (2, 896));
    assert_eq!(x.add(&y).unwrap().sum_all().unwrap().item::<f32>().unwrap(), 200.0);
    let layer = Linear::new(&alloc, 10, 3, &Rng::new(0)).unwrap();
    assert_eq!(bump.stats().live_allocs, 4);
    assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), [0.0; 30]);
    // Op results use the device's memory; the parameter keeps its own while it is trained.
    let mut sgd = Sgd::new(layer.parameters(), 0.1).unwrap();
    sgd.step(layer.forward(&y).unwrap().sum_all().unwrap().backward().unwrap()).unwrap();
    assert_eq!(layer.parameters()[1].1.tensor().to_vec::<f32>().unwrap(), [-1.0; 3]);
    assert_eq!(bump.stats().live_allocs, 4);
    drop((x, y, layer, sgd));
    assert_eq!(bump.stats().live_allocs, 0);
}

#[test]
fn a_custom_tracking_allocator_counts_its_tensors() {
    let runtime = runtime();
    let device = runtime.cpu().unwrap();
    let tracking = TrackingAllocator::new(Arc::clone(device.default_allocator().unwrap()), true);
    let alloc = device.with_allocator(tracking.clone()).unwrap();
    let kept = Tensor::new(&alloc, [100]).unwrap();
    drop(Tensor::new(&alloc, [100]).unwrap());
    let sizes = Sizes { total_bytes: 1024, high_water_bytes: 1024, live_bytes: 512 };
    assert_eq!(tracking.sizes(), sizes);
    let refused = runtime.dry().unwrap().with_allocator(tracking.clone()).unwrap_err();
    assert!(matches!(refused, Error::WrongMemory { kind: MemoryKind::Host, .. }), "{refused}");
    let alive = Arc::downgrade(&tracking);
    drop((alloc, tracking));
    assert!(alive.upgrade().is_some());
    drop(kept);
    assert!(alive.upgrade().is_none());
}

#[test]
fn a_full_custom_allocator_returns_its_own_report() {
    let bump = Bump::new(1 << 10);
    let alloc = runtime().cpu().unwrap().with_allocator(bump.clone()).unwrap();
    let x = Tensor::new(&alloc, [128]).unwrap();
    let error = Tensor::new(&alloc, [256]).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.allocator.as_str(), report.requested, report.free), ("bump", 1024, 512));
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0; 128]);
    drop(x);
    assert!(Tensor::new(&alloc, [256]).is_ok());
}

#[test]
fn an_allocator_of_memory_that_the_device_cannot_use_is_refused() {
    let runtime = runtime();
    let bare = BfcAllocator::new("bare", Arc::new(AddressOnlyMemory::new()), BfcConfig::new(Bytes::mib(1)));
    let error = runtime.cpu().unwrap().with_allocator(Arc::new(bare)).unwrap_err();
    assert_eq!(error.to_string(), "cpu:0 cannot compute on address only memory of the allocator bare");
    let error = runtime.dry().unwrap().with_allocator(Bump::new(1 << 10)).unwrap_err();
    assert!(matches!(error, Error::WrongMemory { kind: MemoryKind::Host, .. }), "{error}");
}
