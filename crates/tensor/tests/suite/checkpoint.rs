//! Parts of a program that run again in the backward pass: the gradients are the same, and memory is lower.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ops_table::{device, dry_device, runtime};
use bfc_core::{Bytes, Category};
use highwater_nn::modules::{Checkpointed, Dropout, Gelu, Linear, Module, Parameter, Sequential};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::{
    Device, Error, GradCheck, Rng, Runtime, Tensor, check_gradients, checkpoint, no_grad,
};

const WIDTH: usize = 16;

/// A block that saves much more than its input.
fn block(device: &Device, rng: &Rng) -> Sequential {
    Sequential::new()
        .with("up", Linear::new(device, WIDTH, 8 * WIDTH, rng).unwrap())
        .with("gelu", Gelu)
        .with("dropout", Dropout::new(0.25, &rng.fork(9)).unwrap())
        .with("down", Linear::new(device, 8 * WIDTH, WIDTH, rng).unwrap())
}

fn network(device: &Device, blocks: usize, checkpointed: bool) -> Sequential {
    let rng = Rng::new(5);
    (0..blocks).fold(Sequential::new(), |net, index| {
        let (name, block) = (format!("block{index}"), block(device, &rng));
        if checkpointed { net.with(&name, Checkpointed::new(block)) } else { net.with(&name, block) }
    })
}

fn input(device: &Device) -> Tensor {
    Tensor::normal(device, [32, WIDTH], 0.0, 1.0, &Rng::new(8)).unwrap()
}

fn activations(device: &Device) -> u64 {
    device.default_allocator().unwrap().ledger().category(Category::Activation)
}

#[test]
fn training_with_checkpoints_is_training_without_to_the_bit() {
    let run = |checkpointed| {
        let device = device();
        let net = network(&device, 3, checkpointed);
        let mut sgd = Sgd::new(net.parameters(), 0.05).unwrap().with_momentum(0.9).unwrap();
        for _ in 0..4 {
            let loss = net.forward(&input(&device)).unwrap().square().unwrap().mean_all().unwrap();
            sgd.step(loss.backward().unwrap()).unwrap();
        }
        let values =
            |(path, parameter): (String, Parameter)| (path, parameter.tensor().to_vec::<f32>().unwrap());
        let rngs: Vec<_> = net.rngs().into_iter().map(|(path, rng)| (path, rng.state())).collect();
        (net.parameters().into_iter().map(values).collect::<Vec<_>>(), rngs)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_forward_keeps_the_inputs_of_its_parts_and_nothing_else() {
    let (device, blocks) = (device(), 4);
    let input_bytes = (input(&device).elements() * 4) as u64;
    let kept = |checkpointed| {
        let net = network(&device, blocks, checkpointed);
        let output = net.forward(&input(&device)).unwrap();
        let kept = activations(&device);
        drop(output);
        assert_eq!(activations(&device), 0);
        kept
    };
    // x and the outputs of all blocks but the last.
    assert_eq!(kept(true), blocks as u64 * input_bytes);
    // Each block saves its input and three tensors that are eight times as wide. These are the input of gelu,
    // the dropout mask, and the input of down.
    assert_eq!(kept(false), blocks as u64 * (1 + 3 * 8) * input_bytes);
}

#[test]
fn the_peak_of_a_step_falls_to_the_inputs_and_one_part() {
    // Enough rows that activations outweigh the gradients of the parameters, which all exist at the end.
    let rows = 2048;
    let peak = |blocks, checkpointed| {
        let device = device();
        let net = network(&device, blocks, checkpointed);
        let x = Tensor::ones(&device, [rows, WIDTH]).unwrap();
        let pool = device.default_allocator().unwrap();
        let before = pool.stats().bytes_in_use;
        assert!(pool.clear_stats());
        let loss = net.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        drop(loss.backward().unwrap());
        pool.stats().peak_bytes_in_use - before
    };
    let input_bytes = (rows * WIDTH * 4) as u64;
    let per_block = |checkpointed| (peak(12, checkpointed) - peak(8, checkpointed)) / 4;
    assert_eq!(per_block(true), input_bytes);
    assert_eq!(per_block(false), (1 + 3 * 8) * input_bytes);
}

#[test]
fn gradients_flow_to_what_the_program_captures_too() {
    let device = device();
    let numbers =
        |seed| Tensor::normal_of(&device, [3, 3], 0.0, 0.7, &Rng::new(seed), highwater_tensor::DType::F64);
    let function = |inputs: &[Tensor]| {
        // A tensor in the middle of the graph, used before, inside and after the part.
        let shared = inputs[1].tanh()?;
        let captured = shared.clone();
        let y = checkpoint(&inputs[0].mul(&shared)?, move |x| x.matmul(&captured)?.sigmoid()?.mul(x))?;
        let inner = shared.clone();
        let z = checkpoint(&y, move |y| {
            let inner = inner.clone();
            checkpoint(&y.sin()?, move |y| y.mul(&inner))?.add(y)
        })?;
        z.mul(&shared)
    };
    let inputs = [numbers(1).unwrap(), numbers(2).unwrap()];
    check_gradients(function, &inputs, GradCheck::for_dtype(highwater_tensor::DType::F64)).unwrap();
}

#[test]
fn a_program_runs_once_without_gradients_and_twice_with() {
    let device = device();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = |x: &Tensor| {
        let runs = Arc::clone(&runs);
        checkpoint(x, move |x| {
            runs.fetch_add(1, Ordering::Relaxed);
            x.square()
        })
    };
    let (plain, leaf) = (Tensor::ones(&device, 3).unwrap(), Tensor::ones(&device, 3).unwrap());
    let leaf = leaf.requiring_grad().unwrap();
    assert!(!counted(&plain).unwrap().requires_grad());
    assert!(!no_grad(|| counted(&leaf)).unwrap().requires_grad());
    assert_eq!(runs.swap(0, Ordering::Relaxed), 2);
    let loss = counted(&leaf).unwrap().sum_all().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(loss.backward().unwrap().get(&leaf).unwrap().to_vec::<f32>().unwrap(), [2.0; 3]);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert!(matches!(loss.backward(), Err(Error::GraphSpent { .. })));
}

#[test]
fn layers_that_act_in_training_alone_act_in_both_runs() {
    let device = device();
    let dropout = Arc::new(Dropout::new(0.5, &Rng::new(4)).unwrap());
    let x = Tensor::ones(&device, 1000).unwrap().requiring_grad().unwrap();
    let inside = Arc::clone(&dropout);
    let y = checkpoint(&x, move |x| inside.forward(&inside.forward(x)?)).unwrap();
    let values = y.to_vec::<f32>().unwrap();
    // Another forward pass draws from the same source before the second run.
    dropout.forward(&x).unwrap();
    let gradients = y.sum_all().unwrap().backward().unwrap();
    // ones · mask is the mask, and so is the gradient.
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), values);
    assert!(values.contains(&0.0) && values.contains(&4.0));
    assert_eq!(dropout.rngs()[0].1.state().sequence, 3);
}

#[test]
fn checkpoints_read_the_original_parameter_values() {
    let device = device();
    let weight = Parameter::new(Tensor::full(&device, [2], 3.0).unwrap()).unwrap();
    let inside = weight.clone();
    let x = Tensor::ones(&device, [2]).unwrap().requiring_grad().unwrap();
    let loss = checkpoint(&x, move |x| x.mul(&inside.tensor())?.square()).unwrap().sum_all().unwrap();
    weight.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    let gradients = loss.backward_stale().unwrap();
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), [18.0; 2]);
    assert_eq!(gradients.get(&weight.tensor()).unwrap().to_vec::<f32>().unwrap(), [6.0; 2]);
}

#[test]
fn a_second_run_that_is_not_like_the_first_is_an_error() {
    let device = device();
    let x = Tensor::ones(&device, [4]).unwrap().requiring_grad().unwrap();
    let rng = Arc::new(Rng::new(0));
    let differs = |first: fn(&Tensor, &Rng) -> highwater_tensor::Result<Tensor>,
                   then: fn(&Tensor, &Rng) -> highwater_tensor::Result<Tensor>| {
        let (runs, rng) = (AtomicUsize::new(0), Arc::clone(&rng));
        let y = checkpoint(&x, move |x| {
            if runs.fetch_add(1, Ordering::Relaxed) == 0 { first(x, &rng) } else { then(x, &rng) }
        });
        let error = y.unwrap().sum_all().unwrap().backward().unwrap_err();
        assert!(matches!(error, Error::ReplayDiffers { .. }), "{error}");
        error.to_string()
    };
    let shape = differs(|x, _| x.square(), |x, _| x.square()?.narrow(0, 0, 2));
    assert!(shape.contains("f32 [2]") && shape.contains("f32 [4]"), "{shape}");
    for message in [
        differs(|x, _| x.square(), |x, rng| x.dropout(0.5, rng)),
        differs(|x, rng| x.dropout(0.5, rng), |x, _| x.square()),
    ] {
        assert!(message.contains("random numbers"), "{message}");
    }
}

#[test]
fn a_checkpoint_rerun_without_memory_leaks_nothing() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let pool = Arc::clone(device.default_allocator().unwrap());
    let x = Tensor::ones(&device, [50 << 10]).unwrap().requiring_grad().unwrap();
    let y = checkpoint(&x, |x| x.square()?.sum_all()).unwrap();
    let hoard: Vec<_> = (0..4).map(|_| Tensor::ones(&device, [50 << 10]).unwrap()).collect();
    let error = y.backward().unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    drop((hoard, y));
    assert_eq!(pool.stats().live_allocs, 1);
    // No part of the tape remains on this thread.
    let y = checkpoint(&x, |x| x.square()?.sum_all()).unwrap();
    assert_eq!(y.backward().unwrap().len(), 1);
}

#[test]
fn nested_checkpoints_are_dropped_without_recursion() {
    let device = device();
    let mut y = Tensor::ones(&device, ()).unwrap().requiring_grad().unwrap();
    for _ in 0..50_000 {
        let captured = y.clone();
        let x = Tensor::ones(&device, ()).unwrap();
        y = checkpoint(&x, move |x| x.add(&captured)).unwrap();
    }
    drop(y);
    assert_eq!(device.default_allocator().unwrap().stats().live_allocs, 0);
}

#[test]
fn the_second_run_is_charged_to_the_module_of_the_first() {
    let runtime = runtime();
    let device = runtime.cpu().unwrap();
    let net = network(&device, 1, true);
    runtime.tracker().reset();
    let calls = |phase| {
        let totals = runtime.tracker().op_totals();
        let of = totals.iter().filter(|row| {
            row.op == "linear_gelu" && row.module.path() == "block0.up" && row.phase.name() == phase
        });
        of.map(|row| row.totals.calls).sum::<u64>()
    };
    let loss = net.forward(&input(&device)).unwrap().sum_all().unwrap();
    assert_eq!((calls("forward"), calls("backward")), (1, 0));
    loss.backward().unwrap();
    assert_eq!((calls("forward"), calls("backward")), (2, 1));
}

#[test]
fn a_dry_run_makes_the_requests_of_the_real_one() {
    let program = |device: &Device| {
        let net = network(device, 3, true);
        let loss = net.forward(&input(device)).unwrap().square().unwrap().mean_all().unwrap();
        drop(loss.backward().unwrap());
        let stats = device.default_allocator().unwrap().stats();
        (stats.num_allocs, stats.peak_bytes_in_use, stats.bytes_requested)
    };
    assert_eq!(program(&dry_device()), program(&device()));
}

#[test]
fn a_panic_while_a_program_is_dropped_keeps_no_later_one() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as planned");
        }
    }
    let device = device();
    let x = Tensor::ones(&device, [2]).unwrap().requiring_grad().unwrap();
    let bomb = Bomb;
    let y = checkpoint(&x, move |x| {
        let _ = &bomb;
        x.relu()
    });
    assert!(catch_unwind(AssertUnwindSafe(|| drop(y))).is_err());
    let captured = Arc::new(());
    let inside = Arc::clone(&captured);
    let y = checkpoint(&x, move |x| {
        let _ = &inside;
        x.relu()
    });
    assert_eq!(Arc::strong_count(&captured), 2);
    drop(y);
    assert_eq!(Arc::strong_count(&captured), 1);
}
