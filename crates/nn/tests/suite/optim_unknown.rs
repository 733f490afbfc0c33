//! Gradients of parameters that an optimizer does not hold.

use crate::ops_table::optimizers::{Make, OPTIMIZERS};
use highwater_nn::modules::{Linear, Module, Parameter, Relu, Sequential, module};
use highwater_nn::optim::{AdamW, Groups, LossScaler, Optimizer, ParameterGroup, ScaledStep, Sgd};
use highwater_tensor::{DType, Device, Error, Result, Rng, Runtime, Tensor};
use highwater_tracking::module;

type Named = Vec<(String, Parameter)>;

/// Every optimizer, and groups.
fn all() -> impl Iterator<Item = (&'static str, Make)> {
    let groups: Make = |own| {
        let (matrices, vectors) = own.into_iter().partition(|(_, own)| own.tensor().rank() > 1);
        let groups = Groups::new().with(matrices, |of| AdamW::new(of, 0.1))?;
        Ok(Box::new(groups.with(vectors, |of| Sgd::new(of, 0.1))?))
    };
    OPTIMIZERS.iter().map(|case| (case.op(), case.make)).chain([("groups", groups)])
}

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn network(device: &Device, seed: u64) -> Sequential {
    let rng = Rng::new(seed);
    Sequential::new()
        .with("fc1", Linear::new(device, 3, 4, &rng).unwrap())
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 4, 3, &rng).unwrap())
}

/// A loss that depends on both networks.
fn loss(first: &Sequential, second: &Sequential) -> Tensor {
    let device = first.parameters()[0].1.tensor().device().clone();
    let x = Tensor::normal(&device, [8, 3], 0.0, 1.0, &Rng::new(9)).unwrap();
    let y = first.forward(&x).unwrap();
    let _scope = module("critic");
    let y = second.forward(&y).unwrap();
    y.square().unwrap().mean_all().unwrap()
}

fn values(net: &dyn Module) -> Vec<f32> {
    let values = |(_, own): (_, Parameter)| own.tensor().to_vec::<f32>().unwrap();
    net.parameters().into_iter().flat_map(values).collect()
}

#[test]
fn gradients_of_another_model_are_counted_and_described() {
    for (name, make) in all() {
        let device = device();
        let (own, other) = (network(&device, 1), network(&device, 2));
        let mut optimizer = make(own.parameters()).unwrap();
        let (before, state) = (values(&own), optimizer.state().unwrap());
        let live = device.default_allocator().unwrap().stats().bytes_in_use;
        let error = optimizer.step(loss(&own, &other).backward().unwrap()).unwrap_err();
        let Error::UnknownParameters { op, gradients } = &error else { panic!("{name}: {error}") };
        assert_eq!((*op, gradients.total, gradients.unknown.len()), (name, 8, 4));
        let shapes: Vec<_> =
            gradients.unknown.iter().map(|gradient| gradient.shape.dims().to_vec()).collect();
        assert_eq!(shapes, [vec![3, 4], vec![4], vec![4, 3], vec![3]]);
        assert_eq!(
            error.to_string(),
            format!(
                "{name}: 4 of 8 gradients belong to parameters that the optimizer does not hold: f32 [3, 4] in critic.fc1; \
                 f32 [4] in critic.fc1; f32 [4, 3] in critic.fc2; f32 [3] in critic.fc2; create the optimizer with all parameters \
                 (a field may have #[module(skip)]), or exclude these gradients with step_partial, split_off or freeze"
            )
        );
        assert_eq!((values(&own), optimizer.state().unwrap()), (before, state), "{name}");
        assert_eq!(device.default_allocator().unwrap().stats().bytes_in_use, live, "{name}");
    }
}

#[test]
fn a_partial_step_is_the_step_without_the_other_gradients() {
    for (name, make) in all() {
        let device = device();
        let nets = [1, 1].map(|seed| network(&device, seed));
        let other = network(&device, 2);
        let before = values(&other);
        let [mut partial, mut whole] = [0, 1].map(|at| make(nets[at].parameters()).unwrap());
        for _ in 0..3 {
            partial.step_partial(loss(&nets[0], &other).backward().unwrap()).unwrap();
            let mut gradients = loss(&nets[1], &other).backward().unwrap();
            whole.step(gradients.split_off(&nets[1].parameters())).unwrap();
            assert_eq!(gradients.len(), 4);
        }
        assert_eq!(values(&nets[0]), values(&nets[1]), "{name}");
        assert_ne!(values(&nets[0]), values(&network(&device, 1)), "{name}");
        assert_eq!(values(&other), before, "{name}");
    }
}

#[test]
fn gradients_of_plain_tensors_are_no_error() {
    for (name, make) in all() {
        let device = device();
        let net = network(&device, 1);
        let before = values(&net);
        let x = Tensor::ones(&device, [8, 3]).unwrap().requiring_grad().unwrap();
        let loss = net.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
        let gradients = loss.backward().unwrap();
        assert_eq!(gradients.len(), 5);
        make(net.parameters()).unwrap().step(gradients).unwrap();
        assert_ne!(values(&net), before, "{name}");
    }
}

/// Two layers, of which the second is skipped.
#[derive(Debug, Module)]
pub(crate) struct Forgetful {
    pub(crate) first: Linear,
    #[module(skip)]
    pub(crate) second: Linear,
}

#[module]
impl Module for Forgetful {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(x)?)
    }
}

#[test]
fn a_skipped_field_is_found_by_the_first_step() {
    let (device, rng) = (device(), Rng::new(1));
    let layer = || Linear::new(&device, 2, 2, &rng).unwrap();
    let net = Forgetful { first: layer(), second: layer() };
    let mut optimizer = Sgd::new(net.parameters(), 0.1).unwrap();
    let y = net.forward(&Tensor::ones(&device, [1, 2]).unwrap()).unwrap();
    let error = optimizer.step(y.sum_all().unwrap().backward().unwrap()).unwrap_err();
    let Error::UnknownParameters { gradients, .. } = &error else { panic!("{error}") };
    // The skipped field has no path.
    let shapes: Vec<_> = gradients.unknown.iter().map(|gradient| gradient.shape.dims().to_vec()).collect();
    assert_eq!(shapes, [vec![2, 2], vec![2]], "{gradients}");
    assert!(gradients.unknown.iter().all(|gradient| gradient.module.is_empty()), "{gradients}");
}

#[test]
fn shared_and_frozen_parameters_are_held() {
    for (name, make) in all() {
        let device = device();
        let net = network(&device, 1);
        let twice = [net.parameters(), net.parameters()].concat();
        let mut optimizer = make(twice).unwrap();
        assert_eq!(optimizer.parameters().len(), 4, "{name}");
        let gradients = loss(&net, &net).backward().unwrap();
        let frozen = net.parameters()[0].1.clone();
        frozen.freeze();
        let before = frozen.tensor().to_vec::<f32>().unwrap();
        optimizer.step(gradients).unwrap();
        assert_eq!(frozen.tensor().to_vec::<f32>().unwrap(), before, "{name}");
        // The former type of a frozen parameter is the optimizer's too.
        frozen.unfreeze();
        let gradients = loss(&net, &net).backward().unwrap();
        frozen.convert(DType::F64).unwrap();
        frozen.freeze();
        optimizer.step(gradients).unwrap();
    }
}

#[test]
fn stale_gradients_stay_an_error_of_their_own() {
    for (name, make) in all() {
        let device = device();
        let (own, other) = (network(&device, 1), network(&device, 2));
        let mut optimizer = make(own.parameters()).unwrap();
        let gradients = || loss(&own, &other).backward().unwrap();
        let (whole, part) = (gradients(), gradients());
        own.parameters()[1].1.convert(DType::F64).unwrap();
        for stale in [optimizer.step(whole), optimizer.step_partial(part)] {
            let stale = stale.unwrap_err();
            assert!(
                matches!(&stale, Error::StaleGradient { parameter, .. } if parameter == "fc1.bias"),
                "{name}: {stale}"
            );
        }
        // Converted parameters of another model are still another model's.
        own.parameters()[1].1.convert(DType::F32).unwrap();
        let whole = gradients();
        other.convert(DType::F64).unwrap();
        let unknown = optimizer.step(whole).unwrap_err();
        assert!(matches!(unknown, Error::UnknownParameters { .. }), "{name}: {unknown}");
    }
}

#[test]
fn an_optimizer_without_parameters_is_an_error() {
    for (name, make) in all() {
        if name == "groups" {
            continue;
        }
        let error = make(Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), format!("{name}: parameters must be at least one, got none"));
    }
}

#[test]
fn groups_accept_an_empty_group_and_keep_its_rate() {
    let device = device();
    let net = network(&device, 1);
    let before = values(&net);
    let mut optimizer = Groups::new()
        .with(Vec::new(), |none| AdamW::new(none, 0.2))
        .and_then(|groups| groups.with(net.parameters(), |all| Sgd::new(all, 0.1)))
        .unwrap();
    assert_eq!(optimizer.learning_rate(), 0.2);
    optimizer.set_learning_rate(0.4).unwrap();
    let state = optimizer.state().unwrap();
    assert_eq!(state["1.sgd/learning_rate"].to_tensor(&device).unwrap().item::<f64>().unwrap(), 0.2);
    optimizer.load_state(&state).unwrap();
    optimizer.step(loss(&net, &net).backward().unwrap()).unwrap();
    assert_ne!(values(&net), before);
    // Outside of a group nothing has changed.
    assert!(AdamW::new(Vec::new(), 0.2).is_err());
    // A failing group does not allow empty optimizers afterwards.
    assert!(Groups::new().with(Vec::new(), |none| AdamW::new(none, -1.0)).is_err());
    assert!(AdamW::new(Vec::new(), 0.2).is_err());
}

#[test]
fn no_group_steps_where_a_parameter_is_in_no_group() {
    let device = device();
    let net = network(&device, 1);
    let (first, second): (Named, Named) =
        net.parameters().into_iter().partition(|(path, _)| path.starts_with("fc1."));
    // The second optimizer leaves out a parameter that it was given.
    let weight_only = |of: ParameterGroup| Sgd::new(of.parameters()[..1].to_vec(), 0.1);
    let mut optimizer = Groups::new()
        .with(first, |of| Sgd::new(of, 0.1))
        .and_then(|groups| groups.with(second, weight_only))
        .unwrap();
    let before = values(&net);
    let error = optimizer.step(loss(&net, &net).backward().unwrap()).unwrap_err();
    let Error::UnknownParameters { op: "groups", gradients } = &error else { panic!("{error}") };
    assert_eq!((gradients.unknown.len(), gradients.total), (1, 4));
    assert_eq!(values(&net), before);
    let none = Groups::new().step(loss(&net, &net).backward().unwrap()).unwrap_err();
    assert!(matches!(none, Error::UnknownParameters { op: "groups", .. }), "{none}");
}

#[test]
fn a_loss_scaler_checks_and_ignores_like_its_optimizer() {
    let device = device();
    let (own, other) = (network(&device, 1), network(&device, 2));
    let mut optimizer = Sgd::new(own.parameters(), 0.1).unwrap();
    let mut scaler = LossScaler::dynamic();
    let before = scaler.clone();
    for factor in [1.0, f64::INFINITY] {
        let scaled = scaler.scale(&loss(&own, &other).mul_scalar(factor).unwrap()).unwrap();
        let error = scaler.step(&mut optimizer, scaled.backward().unwrap()).unwrap_err();
        assert!(error.to_string().contains("4 of 8") && error.to_string().contains("critic.fc2"), "{error}");
        assert_eq!(scaler, before);
    }
    let start = values(&own);
    let scaled = scaler.scale(&loss(&own, &other)).unwrap();
    let step = scaler.step_partial(&mut optimizer, scaled.backward().unwrap()).unwrap();
    assert_eq!(step, ScaledStep::Taken { scale: 32_768.0 });
    assert_ne!(values(&own), start);
}

#[test]
fn foreign_gradients_do_not_decide_a_partial_scaled_step() {
    let device = device();
    let parameter = || Parameter::new(Tensor::ones(&device, [1]).unwrap()).unwrap();
    let (own, other) = (parameter(), parameter());
    let mut optimizer = Sgd::new(vec![("own".to_owned(), own.clone())], 0.5).unwrap();
    let infinite = other.tensor().mul_scalar(f64::INFINITY).unwrap();
    let loss = own.tensor().add(&infinite).unwrap().sum_all().unwrap();
    let mut scaler = LossScaler::dynamic();
    let step = scaler.step_partial(&mut optimizer, scaler.scale(&loss).unwrap().backward().unwrap()).unwrap();
    assert!(step.is_taken());
    assert_eq!(own.tensor().to_vec::<f32>().unwrap(), [0.5]);
}
