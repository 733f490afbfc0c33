//! Checks when ops allocate memory and when they free it.

use std::sync::Arc;

use crate::ops_table::{cases, device, device_of, inputs};
use bfc_core::{Bytes, Category, failed_drops};
use highwater_nn::io::Array;
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::Parameter;
use highwater_tensor::{DType, Device, Error, Op, OpContext, Result, Rng, Runtime, Tensor, apply, no_grad};
use highwater_tracking::Tracker;

fn in_use(device: &Device) -> u64 {
    device.default_allocator().unwrap().stats().bytes_in_use
}

/// Returns the bytes that a tensor's buffer occupies in the pool.
fn held(tensor: &Tensor) -> u64 {
    tensor.storage().allocation().block().bytes
}

fn leaves(inputs: Vec<Tensor>) -> Vec<Tensor> {
    inputs.into_iter().map(|input| input.requiring_grad().unwrap()).collect()
}

#[test]
fn temporaries_are_back_when_the_op_returns() {
    let device = device();
    for case in &cases() {
        let inputs = inputs(case, &device, DType::F32);
        let before = in_use(&device);
        let output = no_grad(|| case.apply(&inputs)).unwrap();
        let is_view = inputs.iter().any(|input| input.shares_buffer_with(&output));
        let expected = if is_view { 0 } else { held(&output) };
        assert_eq!(in_use(&device) - before, expected, "{}", case.name);
    }
}

#[test]
fn ops_without_recording_keep_nothing() {
    let device = device();
    for case in &cases() {
        let leaves = leaves(inputs(case, &device, DType::F32));
        let before = in_use(&device);
        let output = no_grad(|| case.apply(&leaves)).unwrap();
        assert!(!output.requires_grad(), "{}", case.name);
        drop(output);
        assert_eq!(in_use(&device), before, "{}", case.name);
    }
}

/// y = x
#[derive(Debug)]
struct Identity;

impl Op for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn forward(&self, _: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(inputs[0].clone())
    }
}

#[test]
fn no_op_results_require_no_gradient_in_no_grad() {
    let device = device();
    let x = Tensor::ones(&device, [2, 3]).unwrap().requiring_grad().unwrap();
    let ops: &[(&str, &dyn Fn() -> Result<Tensor>)] = &[
        ("reshape", &|| x.reshape([2, 3])),
        ("flatten_from", &|| x.flatten_from(1)),
        ("contiguous", &|| x.contiguous()),
        ("broadcast_to", &|| x.broadcast_to([2, 3])),
        ("sum_to", &|| x.sum_to([2, 3])),
        ("to_dtype", &|| x.to_dtype(DType::F32)),
        ("to_device", &|| x.to_device(&device)),
        ("dropout", &|| x.dropout(0.0, &Rng::new(0))),
        ("identity", &|| apply(Identity, &[&x])),
    ];
    for &(name, op) in ops {
        assert!(op().unwrap().requires_grad(), "{name}");
        let result = no_grad(op).unwrap();
        assert!(!result.requires_grad() && result.shares_buffer_with(&x), "{name}");
    }
}

#[test]
fn views_share_the_buffer_of_their_input() {
    let device = device();
    for case in cases().iter().filter(|case| case.properties.is_view) {
        let inputs = inputs(case, &device, DType::F32);
        let output = case.apply(&inputs).unwrap();
        assert!(output.shares_buffer_with(&inputs[0]), "{}", case.name);
    }
}

#[test]
fn nothing_is_left_once_results_and_gradients_are_dropped() {
    let device = device();
    for case in &cases() {
        {
            let leaves = leaves(inputs(case, &device, DType::F64));
            let loss = case.apply(&leaves).unwrap().sum_all().unwrap();
            assert_eq!(loss.backward().unwrap().len(), leaves.len());
            // Dropping a graph without a backward pass also frees its tensors.
            case.apply(&leaves).unwrap();
        }
        assert_eq!(in_use(&device), 0, "{}", case.name);
    }
}

#[test]
fn all_that_a_backward_takes_counts_as_gradient_or_scratch() {
    let device = device();
    for case in &cases() {
        let leaves = leaves(inputs(case, &device, DType::F32));
        let loss = case.apply(&leaves).unwrap().sum_all().unwrap();
        device.tracker().start_log(bfc_core::Bytes::mib(1));
        let gradients = loss.backward().unwrap();
        for block in device.tracker().take_log().blocks() {
            let expected = [Category::Gradient, Category::Temporary, Category::Workspace];
            assert!(expected.contains(&block.category), "{}: {:?}", case.name, block.category);
        }
        drop(gradients);
    }
}

#[test]
fn gradient_sums_are_charged_to_their_module() {
    let device = device();
    let x = Tensor::ones(&device, 1000).unwrap().requiring_grad().unwrap();
    let loss = {
        let _scope = highwater_tracking::module("net.fc");
        x.add(&x).unwrap().sum_all().unwrap()
    };
    loss.backward().unwrap();
    let totals = device.tracker().op_totals();
    let sum = totals.iter().find(|row| row.op == "sum_gradients").unwrap();
    assert_eq!((sum.module.path(), sum.totals.total_bytes()), ("net.fc".to_owned(), 4096));
}

#[test]
fn an_unsaved_output_goes_back_when_its_last_consumer_drops_it() {
    let device = device();
    let x = Tensor::ones(&device, 1000).unwrap().requiring_grad().unwrap();
    let start = in_use(&device);
    // Neither op reads its input in the backward pass.
    let sum = x.add(&x).unwrap();
    let negated = sum.neg().unwrap();
    assert_eq!(in_use(&device) - start, held(&sum) + held(&negated));
    drop(sum);
    assert_eq!(in_use(&device) - start, held(&negated));
    // A square reads its input. After the drop of the handle, the memory remains, now as an activation.
    let squared = negated.square().unwrap();
    assert_eq!(negated.storage().category(), Some(Category::Activation));
    let saved = held(&negated);
    drop(negated);
    assert_eq!(in_use(&device) - start, saved + held(&squared));
    drop(squared);
    assert_eq!(in_use(&device), start);
}

/// An op that saves its input and fails, or has a result without a gradient.
#[derive(Debug)]
struct Saves {
    fails: bool,
}

impl Op for Saves {
    fn name(&self) -> &'static str {
        "saves"
    }

    fn forward(&self, ctx: &OpContext<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
        ctx.save(inputs[0]);
        if self.fails {
            return Err(Error::Custom { op: "saves", message: "on purpose".to_owned() });
        }
        inputs[0].to_dtype(DType::I64)
    }
}

#[test]
fn what_is_not_kept_after_all_does_not_count_as_an_activation() {
    let device = device();
    let x = Tensor::ones(&device, 4).unwrap().requiring_grad().unwrap();
    assert!(apply(Saves { fails: true }, &[&x]).is_err());
    assert_eq!(x.storage().category(), Some(Category::Output));
    assert!(apply(Saves { fails: false }, &[&x]).is_ok());
    assert_eq!(x.storage().category(), Some(Category::Output));
}

#[test]
fn saved_tensors_are_freed_while_backward_passes() {
    let device = device();
    let pool = device.default_allocator().unwrap();
    const LAYERS: u64 = 10;
    let x = Tensor::full(&device, 1 << 16, 0.1).unwrap().requiring_grad().unwrap();
    let layer = held(&x);
    let mut y = x.clone();
    for _ in 0..LAYERS {
        y = y.tanh().unwrap(); // saves its output and nothing else
    }
    let loss = y.mean_all().unwrap();
    drop(y);
    let before = in_use(&device);
    assert!(before >= (LAYERS + 1) * layer, "each layer's output is saved");
    pool.clear_stats();
    let gradients = loss.backward().unwrap();
    // At the start all saved tensors exist, and two gradients: the layer's result and its argument.
    let peak = pool.stats().peak_bytes_in_use;
    assert!(peak <= before + 2 * layer + 4096, "{peak} after {before}");
    // The loss still holds the graph, but the graph has freed its saved tensors.
    let rest = held(&x) + held(gradients.get(&x).unwrap()) + held(&loss);
    assert_eq!(in_use(&device), rest);
}

#[test]
fn the_gradient_of_a_norm_weight_uses_small_workspaces() {
    let device = device();
    let pool = device.default_allocator().unwrap();
    for shape in [&[4096, 64][..], &[1, 4096, 64]] {
        let x = Tensor::uniform(&device, shape, -1.0, 1.0, &Rng::new(1)).unwrap();
        let [weight, bias] = [(); 2].map(|()| Tensor::ones(&device, 64).unwrap().requiring_grad().unwrap());
        let y = x.layer_norm(Some((&weight, &bias)), 1e-5).unwrap();
        let loss = y.sum_all().unwrap();
        drop(y);
        let before = in_use(&device);
        pool.clear_stats();
        drop(loss.backward().unwrap());
        let taken = pool.stats().peak_bytes_in_use - before;
        assert!(taken > 0 && taken < held(&x) / 3, "{taken} for {} bytes of {shape:?}", held(&x));
    }
}

#[test]
fn a_graph_is_passed_once() {
    let device = device();
    let x = Tensor::ones(&device, 1).unwrap().requiring_grad().unwrap();
    let y = x.exp().unwrap();
    let loss = y.square().unwrap();
    loss.backward().unwrap();
    assert_eq!(loss.backward().unwrap_err(), Error::GraphSpent { op: "square" });
    // The part that this loss shares with another loss is spent too.
    let error = y.neg().unwrap().backward().unwrap_err();
    assert_eq!(
        error.to_string(),
        "backward: an earlier backward pass freed the saved tensors of exp; run the forward pass again"
    );
}

#[test]
fn backward_starts_from_one_number_that_depends_on_a_leaf() {
    let device = device();
    let x = Tensor::ones(&device, [2, 2]).unwrap().requiring_grad().unwrap();
    let error = x.neg().unwrap().backward().unwrap_err();
    assert_eq!(
        error.to_string(),
        "backward: the loss must have one element, got shape [2, 2]; reduce it with `mean_all` or `sum_all`"
    );
    let constant = Tensor::ones(&device, 1).unwrap();
    assert_eq!(constant.neg().unwrap().backward().unwrap_err(), Error::NoGraph);
    let error = x.detach().sum_all().unwrap().backward().unwrap_err();
    assert_eq!(error, Error::NoGraph);
    assert_eq!(
        error.to_string(),
        "backward: no input of this tensor requires a gradient; call `requiring_grad` on an input or use a \
         `Parameter`, and compute this tensor outside of `no_grad`"
    );
    let error = no_grad(|| x.sum_all()?.backward()).unwrap_err();
    assert_eq!(error, Error::GradientsOff);
    assert_eq!(
        error.to_string(),
        "backward: gradients are switched off by `no_grad`; compute this tensor and call `backward` outside of \
         `no_grad` and `no_grad_guard`"
    );
    // The graph of an earlier forward pass remains usable.
    let loss = x.sum_all().unwrap();
    assert!(no_grad(|| loss.backward()).unwrap().get(&x).is_some());
}

/// Runs `work` on a small stack, which overflows if a function recurses per op.
fn on_a_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

#[test]
fn a_million_ops_are_traversed_without_recursion() {
    const OPS: usize = 1_000_000;
    let device = device();
    // The first use of a GPU kernel compiles it, which needs more stack.
    let warm = Tensor::zeros(&device, 1).unwrap().requiring_grad().unwrap();
    warm.add_scalar(1.0).unwrap().backward().unwrap().get(&warm).unwrap().item::<f32>().unwrap();
    let before = in_use(&device);
    on_a_small_stack(|| {
        let x = Tensor::zeros(&device, 1).unwrap().requiring_grad().unwrap();
        let chain = || (0..OPS).fold(x.clone(), |y, _| y.add_scalar(1.0).unwrap());
        drop(chain());
        let end = chain();
        assert_eq!(end.item::<f32>().unwrap(), OPS as f32);
        let gradients = end.backward().unwrap();
        assert_eq!(gradients.get(&x).unwrap().item::<f32>().unwrap(), 1.0);
    });
    assert_eq!(in_use(&device), before);
}

#[test]
fn a_branching_chain_is_dropped_without_recursion() {
    let device = device();
    let warm = Tensor::zeros(&device, 1).unwrap();
    warm.mul(&warm.tanh().unwrap()).unwrap().item::<f32>().unwrap();
    let before = in_use(&device);
    on_a_small_stack(|| {
        let x = Tensor::zeros(&device, 1).unwrap().requiring_grad().unwrap();
        // Each step uses the one before twice and saves both uses.
        let end = (0..50_000).fold(x.clone(), |y, _| y.mul(&y.tanh().unwrap()).unwrap());
        drop(x);
        assert!(in_use(&device) > before + 50_000 * 256);
        drop(end);
    });
    assert_eq!(in_use(&device), before);
}

#[test]
fn an_op_that_saves_its_own_output_does_not_keep_itself_alive() {
    let device = device();
    let before = in_use(&device);
    let ops: &[fn(&Tensor) -> Result<Tensor>] =
        &[Tensor::exp, Tensor::tanh, Tensor::sigmoid, Tensor::sqrt, |x| x.softmax(-1)];
    for &op in ops {
        let x = Tensor::ones(&device, [4, 4]).unwrap().requiring_grad().unwrap();
        let y = op(&x).unwrap();
        assert_eq!(in_use(&device) - before, held(&x) + held(&y));
        drop(x);
        drop(y);
        assert_eq!(in_use(&device), before);
    }
}

#[test]
fn an_allowed_stale_backward_uses_the_forward_values() {
    let device = device();
    let weight = Parameter::new(Tensor::full(&device, 2, 3.0).unwrap()).unwrap();
    let loss = weight.tensor().square().unwrap().sum_all().unwrap();
    let other = weight.tensor().sum_all().unwrap().backward().unwrap();
    Sgd::new(vec![("weight".to_owned(), weight.clone())], 1.0).unwrap().step(other).unwrap();
    assert_eq!(weight.tensor().to_vec::<f32>().unwrap(), [2.0; 2]);
    let gradients = loss.backward_stale().unwrap();
    // 2 · 3 and not 2 · 2: an update never writes into memory that a graph holds.
    assert_eq!(gradients.get(&weight.tensor()).unwrap().to_vec::<f32>().unwrap(), [6.0; 2]);
}

#[test]
fn an_op_that_finds_no_memory_at_any_point_leaves_all_as_it_was() {
    // At least the minimum size that a device maps.
    let device = device_of(Runtime::builder().pool(Bytes::mib(2)).threads(1));
    for (case, dtype) in cases().iter().flat_map(|case| [(case, DType::F32), (case, DType::BF16)]) {
        let leaves = leaves(inputs(case, &device, dtype));
        let values: Vec<_> = leaves.iter().map(|leaf| Array::of(leaf).unwrap()).collect();
        // Allocates the rest of the pool in blocks of the smallest size. Each attempt frees one more block.
        let mut hogs = Vec::new();
        for bytes in [1 << 16, 1 << 12, 1 << 8] {
            while let Ok(hog) = Tensor::zeros_of(&device, bytes, DType::U8) {
                hogs.push(hog);
            }
        }
        let mut failures = 0;
        loop {
            let before = in_use(&device);
            let outcome =
                case.apply(&leaves).and_then(|output| output.sum_all()).and_then(|loss| loss.backward());
            let done = match outcome {
                Ok(gradients) => gradients.len() == leaves.len(),
                Err(error) => {
                    assert!(error.out_of_memory().is_some(), "{}: {error}", case.name);
                    failures += 1;
                    false
                }
            };
            assert_eq!(in_use(&device), before, "{} after {failures} failures", case.name);
            if done {
                break;
            }
            hogs.pop().unwrap();
        }
        assert!(failures > 0, "{} took no memory", case.name);
        for (leaf, values) in leaves.iter().zip(values) {
            assert_eq!(Array::of(leaf).unwrap(), values, "{}", case.name);
        }
    }
}

#[test]
fn a_tensor_outlives_its_runtime_with_accounts_and_without() {
    for tracker in [Tracker::new(), Tracker::disabled()] {
        let runtime = Runtime::builder().threads(1).tracker(tracker).build().unwrap();
        let device = runtime.cpu().unwrap();
        let pool = Arc::downgrade(device.default_allocator().unwrap());
        let x = Tensor::ones(&device, [100]).unwrap().requiring_grad().unwrap();
        let loss = x.square().unwrap().sum_all().unwrap();
        let view = x.detach().narrow(0, 10, 5).unwrap();
        drop((runtime, device));
        let gradient = loss.backward().unwrap().get(&x).unwrap().clone();
        drop((x, loss));
        assert_eq!(view.to_vec::<f32>().unwrap(), [1.0; 5]);
        assert_eq!(gradient.to_vec::<f32>().unwrap(), [2.0; 100]);
        assert_eq!(pool.upgrade().unwrap().stats().live_allocs, 2);
        drop((view, gradient));
        assert!(pool.upgrade().is_none(), "the last tensor is gone, and with it the device");
    }
    assert_eq!(failed_drops(), 0);
}
