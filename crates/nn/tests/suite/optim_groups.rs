//! Groups of parameters, each with its own optimizer.

use bfc_core::Bytes;
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::{Linear, Module, Parameter, Relu, Sequential};
use highwater_nn::optim::{Adam, AdamW, Groups, Optimizer, Sgd};
use highwater_tensor::{DType, Device, Error, Gradients, Rng, Runtime, Tensor};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn network(device: &Device, seed: u64) -> Sequential {
    let rng = Rng::new(seed);
    Sequential::new()
        .with("fc1", Linear::new(device, 5, 8, &rng).unwrap())
        .with("relu", Relu)
        .with("fc2", Linear::new(device, 8, 2, &rng).unwrap())
}

type Named = Vec<(String, Parameter)>;

fn matrices_and_vectors(net: &Sequential) -> (Named, Named) {
    net.parameters().into_iter().partition(|(_, parameter)| parameter.tensor().rank() > 1)
}

fn groups(net: &Sequential) -> Groups {
    let (matrices, vectors) = matrices_and_vectors(net);
    Groups::new()
        .with(matrices, |of| AdamW::new(of, 0.02)?.with_weight_decay(0.1))
        .and_then(|groups| groups.with(vectors, |of| Sgd::new(of, 0.01)?.with_momentum(0.9)))
        .unwrap()
}

fn backward(net: &Sequential, step: u64) -> Gradients {
    let dtype = net.parameters()[0].1.tensor().dtype();
    let device = net.parameters()[0].1.tensor().device().clone();
    let x = Tensor::normal_of(&device, [12, 5], 0.0, 1.0, &Rng::new(step), dtype).unwrap();
    net.forward(&x).unwrap().square().unwrap().mean_all().unwrap().backward().unwrap()
}

fn bits(net: &Sequential) -> Vec<u32> {
    let values =
        |parameter: Parameter| parameter.tensor().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    net.parameters().into_iter().flat_map(|(_, parameter)| values(parameter)).map(f32::to_bits).collect()
}

#[test]
fn groups_step_as_their_optimizers_do_each_for_itself() {
    let device = device();
    let (one, two) = (network(&device, 1), network(&device, 1));
    let mut together = groups(&one);
    let (matrices, vectors) = matrices_and_vectors(&two);
    let mut of_matrices = AdamW::new(matrices.clone(), 0.02).unwrap().with_weight_decay(0.1).unwrap();
    let mut of_vectors = Sgd::new(vectors, 0.01).unwrap().with_momentum(0.9).unwrap();
    for step in 0..4 {
        together.step(backward(&one, step)).unwrap();
        let mut gradients = backward(&two, step);
        of_matrices.step(gradients.split_off(&matrices)).unwrap();
        of_vectors.step(gradients).unwrap();
        assert_eq!(bits(&one), bits(&two), "step {step}");
    }
}

#[test]
fn setting_a_learning_rate_keeps_the_group_ratios() {
    let device = device();
    let net = network(&device, 1);
    let mut optimizer = groups(&net);
    assert_eq!(optimizer.learning_rate(), 0.02);
    optimizer.set_learning_rate(0.5).unwrap();
    let state = optimizer.state().unwrap();
    let rate = |name: &str| state[name].to_tensor(&device).unwrap().item::<f64>().unwrap();
    assert_eq!((rate("0.adamw/learning_rate"), rate("1.sgd/learning_rate")), (0.5, 0.25));
    for bad in [f64::NAN, -1.0, f64::INFINITY] {
        let refused = optimizer.set_learning_rate(bad).unwrap_err();
        assert!(matches!(refused, Error::BadArgument { op: "groups", argument: "lr", .. }), "{refused}");
    }
    assert_eq!(optimizer.learning_rate(), 0.5);
}

#[test]
fn a_run_with_groups_resumes_to_the_bit() {
    let (device, folder) = (device(), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let whole = network(&device, 1);
    let mut optimizer = groups(&whole);
    (0..3).for_each(|step| optimizer.step(backward(&whole, step)).unwrap());
    optimizer.set_learning_rate(0.03).unwrap();
    Checkpoint::of(&whole).unwrap().with_optimizer(&optimizer).unwrap().save(&path).unwrap();
    (3..6).for_each(|step| optimizer.step(backward(&whole, step)).unwrap());

    let resumed = network(&device, 2);
    let mut optimizer = groups(&resumed);
    let checkpoint = Checkpoint::load(&path).unwrap();
    checkpoint.restore_all(&resumed, &mut optimizer).unwrap();
    (3..6).for_each(|step| optimizer.step(backward(&resumed, step)).unwrap());
    assert_eq!(bits(&resumed), bits(&whole));
}

#[test]
fn the_state_of_other_groups_is_refused() {
    let device = device();
    let (saved, other) = (network(&device, 1), network(&device, 2));
    let mut optimizer = groups(&saved);
    optimizer.step(backward(&saved, 0)).unwrap();
    let checkpoint = Checkpoint::of(&saved).unwrap().with_optimizer(&optimizer).unwrap();
    let (matrices, vectors) = matrices_and_vectors(&other);
    let mut adam = Groups::new()
        .with(matrices.clone(), |of| Adam::new(of, 0.02))
        .and_then(|groups| groups.with(vectors.clone(), |of| Sgd::new(of, 0.01)?.with_momentum(0.9)))
        .unwrap();
    let mut fewer = Groups::new().with(matrices, |of| AdamW::new(of, 0.02)).unwrap();
    let (before, of_adam) = (bits(&other), adam.state().unwrap());
    let kinds = checkpoint.restore_all(&other, &mut adam).unwrap_err().to_string();
    assert!(kinds.contains("missing: 0.adam/learning_rate; unexpected: 0.adamw/fc1.weight.mean"), "{kinds}");
    let number = checkpoint.restore_all(&other, &mut fewer).unwrap_err().to_string();
    assert!(number.contains("unexpected: 1.sgd/"), "{number}");
    assert_eq!(bits(&other), before);
    assert_eq!(adam.state().unwrap(), of_adam);
}

#[test]
fn a_parameter_is_in_one_group() {
    let net = network(&device(), 1);
    let (matrices, _) = matrices_and_vectors(&net);
    let refused = groups(&net).with(matrices, |of| Sgd::new(of, 0.1)).unwrap_err().to_string();
    assert_eq!(refused, "groups: parameters must be in one group each, got fc1.weight again");
}

#[test]
fn without_memory_for_one_group_no_group_has_stepped() {
    for dtype in [DType::F32, DType::F16] {
        let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
        let parameter = |elements: usize| {
            let parameter = Parameter::new(Tensor::ones(&device, [elements]).unwrap()).unwrap();
            parameter.convert(dtype).unwrap();
            parameter
        };
        let (small, large) = (parameter(16), parameter(16 << 10));
        let named = |parameter: &Parameter| vec![("own".to_owned(), parameter.clone())];
        let mut optimizer = Groups::new()
            .with(named(&small), |of| Sgd::new(of, 0.1))
            .and_then(|groups| groups.with(named(&large), |of| Sgd::new(of, 0.1)))
            .unwrap();
        let sum = |parameter: &Parameter| parameter.tensor().sum_all().unwrap();
        let gradients = || sum(&small).add(&sum(&large)).unwrap().backward().unwrap();
        let first =
            |parameter: &Parameter| parameter.tensor().narrow(0, 0, 1).unwrap().to_dtype(DType::F32).unwrap();
        let value = |parameter: &Parameter| first(parameter).item::<f32>().unwrap();
        let given = gradients();
        // The update has to copy a shared tensor, and the pool has no memory for the copy.
        let looked_into = large.tensor();
        let mut hogs = Vec::new();
        while let Ok(hog) = Tensor::zeros(&device, [1 << 10]) {
            hogs.push(hog);
        }
        let refused = optimizer.step(given).unwrap_err();
        assert!(refused.out_of_memory().is_some(), "{dtype}: {refused}");
        hogs.clear();
        drop(looked_into);
        assert_eq!((value(&small), value(&large)), (1.0, 1.0), "{dtype}");
        optimizer.step(gradients()).unwrap();
        assert!(value(&small) < 0.95 && value(&large) < 0.95, "{dtype}");
    }
}
