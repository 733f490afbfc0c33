//! A backward pass through old values of a parameter is an error, unless the caller requests it.

use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::{Linear, Module, Parameter};
use highwater_nn::optim::{Optimizer, Sgd};
use highwater_tensor::{DType, Device, Error, Gradients, Result, Rng, Runtime, Tensor, checkpoint};
use highwater_tracking::module;

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn full(device: &Device, value: f64) -> Tensor {
    Tensor::full(device, [2], value).unwrap()
}

fn parameter(device: &Device, value: f64) -> Parameter {
    Parameter::new(full(device, value)).unwrap()
}

fn sum_of_squares(x: &Tensor) -> Tensor {
    x.square().unwrap().sum_all().unwrap()
}

fn is_stale(result: &Result<Gradients>) -> bool {
    matches!(result, Err(Error::StaleBackward { .. }))
}

/// Returns the first element of a parameter's gradient.
fn gradient(gradients: &Gradients, of: &Parameter) -> f32 {
    gradients.get(&of.tensor()).unwrap().to_vec::<f32>().unwrap()[0]
}

#[test]
fn a_backward_after_a_step_is_refused_before_anything_is_done() {
    let device = device();
    let layer = Linear::new(&device, 2, 3, &Rng::new(0)).unwrap();
    let mut sgd = Sgd::new(layer.parameters(), 0.1).unwrap();
    let x = Tensor::ones(&device, [4, 2]).unwrap().requiring_grad().unwrap();
    let _scope = module("layer");
    let loss = || sum_of_squares(&layer.forward(&x).unwrap());
    let (first, late) = (loss(), loss());
    sgd.step(first.backward().unwrap()).unwrap();
    let memory = device.default_allocator().unwrap();
    let before = memory.stats().live_allocs;
    for _ in 0..2 {
        let error = late.backward().unwrap_err();
        assert!(
            matches!(&error, Error::StaleBackward { op: "linear", module, .. } if module == "layer"),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            "backward: linear in layer saved a parameter of shape [2, 3] that has changed since; run the forward pass \
             again, or compute the gradients at the old values with `backward_stale`"
        );
        assert_eq!(memory.stats().live_allocs, before);
    }
    assert_eq!(late.backward_stale().unwrap().len(), 3);
    assert!(matches!(late.backward_stale(), Err(Error::GraphSpent { .. })));
    // A new pass over the new values still works.
    sgd.step(loss().backward().unwrap()).unwrap();
}

#[test]
fn every_way_to_change_a_parameter_counts() {
    let device = device();
    type Change = fn(&Parameter);
    let changes: [Change; 3] = [
        |p| p.set(&full(p.tensor().device(), 5.0)).unwrap(),
        |p| p.convert(DType::F64).unwrap(),
        |p| {
            let gradients = p.tensor().sum_all().unwrap().backward().unwrap();
            Sgd::new(vec![("p".to_owned(), p.clone())], 0.1).unwrap().step(gradients).unwrap();
        },
    ];
    for change in changes {
        let p = parameter(&device, 3.0);
        let loss = sum_of_squares(&p.tensor());
        let through_a_view = sum_of_squares(&p.tensor().flip([0]).unwrap().narrow(0, 0, 1).unwrap());
        let of_a_view = sum_of_squares(&p.tensor().narrow(0, 1, 1).unwrap());
        change(&p);
        assert!(is_stale(&loss.backward()));
        assert!(is_stale(&of_a_view.backward()));
        // The flipped values are a copy, which no update changes.
        through_a_view.backward().unwrap();
    }

    let layer = Linear::new(&device, 2, 2, &Rng::new(0)).unwrap();
    let saved = Checkpoint::of(&layer).unwrap();
    let x = full(&device, 1.0).unsqueeze(0).unwrap().requiring_grad().unwrap();
    let loss = layer.forward(&x).unwrap().sum_all().unwrap();
    saved.restore(&layer).unwrap();
    assert!(is_stale(&loss.backward()));
}

#[test]
fn a_change_of_values_that_no_gradient_reads_is_no_matter() {
    let device = device();
    let (bias, other) = (parameter(&device, 3.0), parameter(&device, 1.0));
    let loss = sum_of_squares(&other.tensor().add(&bias.tensor()).unwrap());
    let held = bias.tensor();
    bias.set(&full(&device, 7.0)).unwrap();
    // The graph saved 2 · (1 + 3), which is not a parameter.
    assert_eq!(gradient(&loss.backward().unwrap(), &bias), 8.0);
    drop(held);

    // Detached values of a parameter are a constant.
    let weight = parameter(&device, 3.0);
    let loss = other.tensor().mul(&weight.tensor().detach()).unwrap().sum_all().unwrap();
    weight.set(&full(&device, 7.0)).unwrap();
    assert_eq!(gradient(&loss.backward().unwrap(), &other), 3.0);
}

#[test]
fn kept_values_survive_a_parameter_change() {
    let device = device();
    let weight = parameter(&device, 3.0);
    let kept = weight.tensor();
    weight.set(&full(&device, 5.0)).unwrap();
    // A penalty on the way from the kept values, which as values are a leaf's former ones.
    for kept in [kept.detach(), kept] {
        let loss = weight.tensor().sub(&kept).unwrap().mul(&kept).unwrap().sum_all().unwrap();
        // The new values contribute 3. The kept values contribute 5 - 2 · 3 if they are a leaf.
        assert_eq!(
            gradient(&loss.backward().unwrap(), &weight),
            if kept.requires_grad() { 2.0 } else { 3.0 }
        );
    }
}

#[test]
fn parameters_from_one_buffer_have_separate_versions() {
    let device = device();
    let start = full(&device, 3.0);
    let [online, target] = [&start; 2].map(|start| Parameter::new(start.clone()).unwrap());
    let graphs = || [&online, &target].map(|p| sum_of_squares(&p.tensor()));
    let [of_online, of_target] = graphs();
    online.set(&full(&device, 4.0)).unwrap();
    assert!(is_stale(&of_online.backward()));
    assert_eq!(gradient(&of_target.backward().unwrap(), &target), 6.0);

    let again = sum_of_squares(&target.tensor());
    target.set(&full(&device, 4.0)).unwrap();
    assert!(is_stale(&again.backward()));
    for graph in graphs() {
        graph.backward().unwrap();
    }
}

#[test]
fn a_checkpoint_is_stale_after_its_captures_change() {
    let device = device();
    let weight = parameter(&device, 3.0);
    let x = full(&device, 1.0).requiring_grad().unwrap();
    let part = |x: &Tensor, weight: &Parameter| {
        let weight = weight.clone();
        checkpoint(x, move |x| x.mul(&weight.tensor())?.square()?.sum_all()).unwrap()
    };
    let loss = part(&x, &weight);
    weight.set(&full(&device, 5.0)).unwrap();
    assert!(is_stale(&loss.backward()));
    // 2 · 3 · 1 · 1
    assert_eq!(gradient(&loss.backward_stale().unwrap(), &weight), 6.0);
    assert_eq!(gradient(&part(&x, &weight).backward().unwrap(), &weight), 10.0);

    // The input of a checkpointed part and its captured tensors also depend on parameters.
    let of_input = part(&weight.tensor(), &parameter(&device, 1.0));
    let captured = weight.tensor().square().unwrap();
    let capturing = || {
        let captured = captured.clone();
        checkpoint(&x, move |x| x.mul(&captured)?.sum_all()).unwrap()
    };
    let (refused, asked_for) = (capturing(), capturing());
    weight.set(&full(&device, 7.0)).unwrap();
    for loss in [of_input, refused] {
        assert!(is_stale(&loss.backward()));
    }
    assert_eq!(gradient(&asked_for.backward_stale().unwrap(), &weight), 10.0);
}

#[test]
fn a_long_graph_is_searched_without_recursion() {
    let device = device();
    let weight = parameter(&device, 1.0);
    let mut y = weight.tensor().square().unwrap();
    // Each sum refers to the one before twice, so there are 2^100,000 paths.
    for _ in 0..100_000 {
        y = y.mul_scalar(0.25).unwrap().add(&y).unwrap().mul_scalar(0.8).unwrap();
    }
    let loss = y.sum_all().unwrap();
    weight.set(&full(&device, 2.0)).unwrap();
    assert!(is_stale(&loss.backward()));
    let gradients = loss.backward_stale().unwrap();
    assert!((gradient(&gradients, &weight) - 2.0).abs() < 0.1);
}
