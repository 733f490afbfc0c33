//! Frozen parameters: parts of a network that keep their values while training changes the others.

use bfc_core::Category;
use highwater_nn::modules::{Checkpointed, Linear, Module, Parameter, Relu, Sequential};
use highwater_nn::optim::{AdamW, Optimizer, Sgd};
use highwater_tensor::{Device, Rng, Runtime, Tensor};

type MakeOptimizer = fn(&Sequential) -> Box<dyn Optimizer>;

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn layer(device: &Device, rng: &Rng) -> Linear {
    Linear::new(device, 16, 16, rng).unwrap()
}

/// Three layers. The backward pass may run the middle one again.
fn network(device: &Device, again: bool) -> Sequential {
    let rng = Rng::new(5);
    let (first, inner) = (layer(device, &rng), layer(device, &rng));
    let net = Sequential::new().with("first", first).with("relu", Relu);
    let net = if again { net.with("inner", Checkpointed::new(inner)) } else { net.with("inner", inner) };
    net.with("relu", Relu).with("last", layer(device, &rng))
}

fn inner(net: &Sequential) -> Vec<Parameter> {
    let is_inner = |(path, parameter): (String, _)| path.starts_with("inner.").then_some(parameter);
    net.parameters().into_iter().filter_map(is_inner).collect()
}

fn loss(net: &Sequential, device: &Device) -> Tensor {
    let x = Tensor::normal(device, [32, 16], 0.0, 1.0, &Rng::new(1)).unwrap();
    net.forward(&x).unwrap().square().unwrap().mean_all().unwrap()
}

fn values(parameter: &Parameter) -> Vec<f32> {
    parameter.tensor().to_vec().unwrap()
}

#[test]
fn gradients_pass_through_a_frozen_module_unchanged() {
    for again in [false, true] {
        let device = device();
        let net = network(&device, again);
        let whole = loss(&net, &device).backward().unwrap();
        assert_eq!(whole.len(), 6);
        inner(&net).iter().for_each(Parameter::freeze);
        let part = loss(&net, &device).backward().unwrap();
        assert_eq!(part.len(), 4);
        for (path, parameter) in net.parameters() {
            let leaf = parameter.tensor();
            assert_eq!(leaf.requires_grad(), !path.starts_with("inner."), "{path}");
            if leaf.requires_grad() {
                let [whole, part] = [&whole, &part].map(|of| of.get(&leaf).unwrap().to_vec::<f32>().unwrap());
                assert_eq!(whole, part, "{path}");
            }
        }
        net.unfreeze();
        let thawed = loss(&net, &device).backward().unwrap();
        for parameter in inner(&net) {
            let [whole, thawed] = [&whole, &thawed].map(|of| of.get(&parameter.tensor()).unwrap());
            assert_eq!(whole.to_vec::<f32>().unwrap(), thawed.to_vec::<f32>().unwrap());
        }
    }
}

#[test]
fn a_frozen_network_keeps_nothing_for_backward() {
    let device = device();
    let net = network(&device, false);
    net.freeze();
    assert!(net.parameters().iter().all(|(_, parameter)| parameter.is_frozen()));
    let y = loss(&net, &device);
    assert!(!y.requires_grad());
    let held = device.default_allocator().unwrap().stats();
    let parameters = net.parameters().len() as u64;
    assert_eq!(held.live_allocs, parameters + 1, "the parameters and the loss");
    let category = net.parameters()[0].1.tensor().storage().category();
    assert_eq!(category, Some(Category::Parameter));
}

#[test]
fn optimizers_do_not_change_frozen_parameters() {
    let device = device();
    let optimisers: [MakeOptimizer; 2] = [
        |net| {
            Box::new(
                Sgd::new(net.parameters(), 0.1)
                    .unwrap()
                    .with_momentum(0.9)
                    .unwrap()
                    .with_weight_decay(0.1)
                    .unwrap(),
            )
        },
        |net| Box::new(AdamW::new(net.parameters(), 0.1).unwrap()),
    ];
    for make in optimisers {
        let net = network(&device, false);
        let mut optimizer = make(&net);
        // The first step creates the momentum and the mean.
        optimizer.step(loss(&net, &device).backward().unwrap()).unwrap();
        let before: Vec<_> = net.parameters().iter().map(|(_, parameter)| values(parameter)).collect();
        let gradients = loss(&net, &device).backward().unwrap();
        inner(&net).iter().for_each(Parameter::freeze);
        optimizer.step(gradients).unwrap();
        optimizer.step(loss(&net, &device).backward().unwrap()).unwrap();
        for ((path, parameter), before) in net.parameters().iter().zip(before) {
            assert_eq!(values(parameter) == before, parameter.is_frozen(), "{path}");
        }
        net.unfreeze();
        let before: Vec<_> = inner(&net).iter().map(values).collect();
        optimizer.step(loss(&net, &device).backward().unwrap()).unwrap();
        assert!(inner(&net).iter().zip(before).all(|(parameter, before)| values(parameter) != before));
    }
}

#[test]
fn a_frozen_parameter_can_be_set_and_is_debugged_as_frozen() {
    let device = device();
    let parameter = Parameter::new(Tensor::ones(&device, [2]).unwrap()).unwrap();
    parameter.clone().freeze();
    parameter.set(&Tensor::zeros(&device, [2]).unwrap()).unwrap();
    assert_eq!(values(&parameter), [0.0, 0.0]);
    assert_eq!(format!("{parameter:?}"), "Parameter(f32 [2] on cpu:0, frozen)");
}
