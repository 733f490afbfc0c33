//! Optimizer state of frozen parameters: none until their first step.

use crate::ops_table::optimizers::{Make, OPTIMIZERS, OptimizerCase};
use bfc_core::{Bytes, Category};
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::{Linear, Module, Relu, Sequential};
use highwater_nn::optim::{Adam, AdamW, Groups, Optimizer};
use highwater_tensor::{Device, Error, Result, Rng, Runtime, Tensor};

/// Each optimizer with the number of its state tensors per parameter, and groups.
fn optimizers() -> impl Iterator<Item = (u64, Make)> {
    let groups: Make = |own| {
        let (weights, biases) = own.into_iter().partition(|(path, _)| path.ends_with("weight"));
        let groups = Groups::new().with(biases, |own| AdamW::new(own, 0.01))?;
        Ok(Box::new(groups.with(weights, |own| AdamW::new(own, 0.02))?))
    };
    OPTIMIZERS.iter().map(|case| (case.states, case.make)).chain([(2, groups)])
}

const WIDTH: usize = 32;

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

/// Two equal layers, of which the first is frozen.
fn half_frozen(device: &Device, seed: u64) -> Sequential {
    let rng = Rng::new(seed);
    let layer = || Linear::new(device, WIDTH, WIDTH, &rng).unwrap();
    let first = layer();
    first.freeze();
    Sequential::new().with("first", first).with("relu", Relu).with("last", layer())
}

fn state_bytes(device: &Device) -> u64 {
    device.default_allocator().unwrap().ledger().category(Category::OptimizerState)
}

fn parameter_bytes(device: &Device) -> u64 {
    device.default_allocator().unwrap().ledger().category(Category::Parameter)
}

fn step(net: &Sequential, optimizer: &mut dyn Optimizer, number: u64) -> Result<()> {
    let device = net.parameters()[0].1.value().device().clone();
    let x = Tensor::normal(&device, [8, WIDTH], 0.0, 1.0, &Rng::new(number))?;
    optimizer.step(net.forward(&x)?.square()?.mean_all()?.backward()?)
}

fn bits(net: &Sequential) -> Vec<u32> {
    let values = net.parameters().into_iter().flat_map(|(_, p)| p.value().to_vec::<f32>().unwrap());
    values.map(f32::to_bits).collect()
}

#[test]
fn a_frozen_half_has_no_state_until_its_first_step() {
    for (tensors, make) in optimizers() {
        let device = cpu();
        let net = half_frozen(&device, 0);
        let mut optimizer = make(net.parameters()).unwrap();
        let half = parameter_bytes(&device) / 2;
        assert_eq!(state_bytes(&device), tensors * half);
        step(&net, &mut optimizer, 0).unwrap();
        assert_eq!(state_bytes(&device), tensors * half);
        net.unfreeze();
        assert_eq!(state_bytes(&device), tensors * half);
        step(&net, &mut optimizer, 1).unwrap();
        assert_eq!(state_bytes(&device), 2 * tensors * half);
        // State stays while a trained parameter is frozen.
        net.freeze();
        assert_eq!(state_bytes(&device), 2 * tensors * half);
    }
}

#[test]
fn an_unfrozen_parameter_takes_the_steps_of_a_new_optimizer() {
    for (_, make) in optimizers() {
        let device = cpu();
        let (late, early) = (half_frozen(&device, 0), half_frozen(&device, 0));
        let mut of_late = make(late.parameters()).unwrap();
        early.unfreeze();
        let mut of_early = make(early.parameters()).unwrap();
        late.unfreeze();
        for number in 0..3 {
            step(&late, &mut of_late, number).unwrap();
            step(&early, &mut of_early, number).unwrap();
        }
        assert_eq!(bits(&late), bits(&early));
    }
}

/// Trains with a frozen half, and unfreezes it before this step. Continues from `resumed` if there is one.
fn train(
    make: Make,
    unfreeze_at: u64,
    save_at: Option<u64>,
    resumed: Option<(u64, &Checkpoint)>,
) -> (Vec<u32>, u64, Option<Checkpoint>) {
    let device = cpu();
    let net = half_frozen(&device, resumed.map_or(0, |_| 9));
    let mut optimizer = make(net.parameters()).unwrap();
    let (mut saved, mut first) = (None, 0);
    if let Some((at, checkpoint)) = resumed {
        // A program that resumes later has unfrozen its parameters before or after the restore.
        if at > unfreeze_at {
            net.unfreeze();
        }
        checkpoint.restore_all(&net, &mut optimizer).unwrap();
        first = at;
    }
    for number in first..8 {
        if number == unfreeze_at {
            net.unfreeze();
        }
        step(&net, &mut optimizer, number).unwrap();
        if Some(number + 1) == save_at {
            saved = Some(Checkpoint::of(&net).unwrap().with_optimizer(&optimizer).unwrap());
        }
    }
    (bits(&net), state_bytes(&device), saved)
}

#[test]
fn a_resumed_run_with_frozen_and_then_unfrozen_parameters_is_that_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    for (_, make) in optimizers() {
        for (unfreeze_at, save_at) in [(4, 2), (4, 4), (4, 6), (99, 4)] {
            let (expected, bytes, saved) = train(make, unfreeze_at, Some(save_at), None);
            saved.unwrap().save(&path).unwrap();
            let checkpoint = Checkpoint::load(&path).unwrap();
            let (found, resumed_bytes, _) = train(make, unfreeze_at, None, Some((save_at, &checkpoint)));
            assert_eq!((found, resumed_bytes), (expected, bytes), "{unfreeze_at}, {save_at}");
        }
    }
}

#[test]
fn a_state_without_that_of_a_frozen_parameter_empties_an_allocated_one() {
    for (tensors, make) in optimizers() {
        let device = cpu();
        let net = half_frozen(&device, 0);
        let frozen = make(net.parameters()).unwrap().state().unwrap();
        net.unfreeze();
        let mut optimizer = make(net.parameters()).unwrap();
        let whole = state_bytes(&device);
        optimizer.load_state(&frozen).unwrap();
        assert_eq!(state_bytes(&device), whole / 2, "{tensors}");
        assert_eq!(optimizer.state().unwrap(), frozen);
    }
}

#[test]
fn missing_state_of_a_trained_parameter_is_an_error() {
    let device = cpu();
    let net = half_frozen(&device, 0);
    for OptimizerCase { name, make, .. } in OPTIMIZERS.iter().filter(|case| case.states > 0) {
        let mut optimizer = make(net.parameters()).unwrap();
        step(&net, &mut optimizer, 0).unwrap();
        let whole = optimizer.state().unwrap();
        let mut part = whole.clone();
        let is_state = |key: &&String| key.starts_with("last.weight.") && !key.ends_with("steps");
        let key = whole.keys().find(is_state).unwrap();
        part.remove(key).unwrap();
        assert!(matches!(optimizer.load_state(&part), Err(Error::Mismatch(_))), "{name}");
        assert_eq!(optimizer.state().unwrap(), whole);
    }
}

#[test]
fn a_step_without_memory_for_new_state_changes_nothing() {
    let adam: Make = |own| Ok(Box::new(Adam::new(own, 0.01)?));
    let groups = optimizers().last().map(|(_, make)| make);
    for make in groups.into_iter().chain([adam]) {
        let mut failures = 0;
        for kib in 16..64 {
            let device = Runtime::builder().threads(1).pool(Bytes::kib(kib)).build().unwrap().cpu().unwrap();
            let net = half_frozen(&device, 0);
            let Ok(mut adam) = make(net.parameters()) else { continue };
            if step(&net, &mut adam, 0).is_err() {
                continue;
            }
            let (values, state) = (bits(&net), adam.state().unwrap());
            net.unfreeze();
            let Err(error) = step(&net, &mut adam, 1) else { break };
            assert!(error.out_of_memory().is_some(), "{error}");
            assert!(bits(&net) == values, "the parameters have changed");
            assert!(adam.state().unwrap() == state, "the state has changed");
            failures += usize::from(error.to_string().starts_with("adam"));
        }
        assert!(failures > 1, "{failures} steps without memory for state");
    }
}

#[test]
fn a_dry_run_predicts_the_peak_with_a_frozen_half() {
    for (_, make) in optimizers() {
        let peak = |device: &Device| {
            let net = half_frozen(device, 0);
            let mut optimizer = make(net.parameters()).unwrap();
            for number in 0..4 {
                if number == 2 {
                    net.unfreeze();
                }
                step(&net, &mut optimizer, number).unwrap();
            }
            let stats = device.default_allocator().unwrap().stats();
            (stats.peak_bytes_in_use, stats.num_allocs)
        };
        let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
        assert_eq!(peak(&dry), peak(&cpu()));
    }
}
