//! Compares optimizers with the formulas of their papers, and checks the memory of a step.

use crate::ops_table::device;
use crate::ops_table::optimizers::{OPTIMIZERS, OptimizerCase};
use bfc_core::{Bytes, Category};
use highwater_nn::modules::{Linear, Module, Parameter, Sequential};
use highwater_nn::optim::{Adadelta, Adagrad, Adam, AdamW, Lion, NAdam, Optimizer, RmsProp, Sgd};
use highwater_tensor::backend::kernels::OptimizerRule;
use highwater_tensor::{DType, Device, Error, Gradients, Rng, Runtime, Tensor, checkpoint};
use highwater_tracking::Phase;

const START: [f64; 3] = [1.0, -2.0, 0.5];

fn parameter(device: &Device) -> Parameter {
    Parameter::new(Tensor::from_slice(device, &START, [3]).unwrap()).unwrap()
}

fn named(parameter: &Parameter) -> Vec<(String, Parameter)> {
    vec![("layer.weight".to_owned(), parameter.clone())]
}

/// The gradient of Σ cᵢ pᵢ²  is 2 cᵢ pᵢ.
fn gradients(parameter: &Parameter) -> Gradients {
    let scale = Tensor::from_slice(parameter.tensor().device(), &SCALE, [3]).unwrap();
    parameter.tensor().square().unwrap().mul(&scale).unwrap().sum_all().unwrap().backward().unwrap()
}

const SCALE: [f64; 3] = [1.0, 0.1, -0.3];

fn values(parameter: &Parameter) -> Vec<f64> {
    parameter.tensor().to_vec().unwrap()
}

fn assert_close(computed: &[f64], expected: &[f64]) {
    assert_eq!(computed.len(), expected.len());
    for (a, b) in computed.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{computed:?} is not {expected:?}");
    }
}

/// Runs ten steps of the optimizer, and ten of `formula`, which updates one element of the given index along
/// its gradient.
fn compare(
    mut optimizer: impl Optimizer,
    parameter: &Parameter,
    mut formula: impl FnMut(usize, &mut f64, f64),
) {
    let mut expected = START;
    for _ in 0..10 {
        for (index, value) in expected.iter_mut().enumerate() {
            let gradient = 2.0 * SCALE[index] * *value;
            formula(index, value, gradient);
        }
        optimizer.step(gradients(parameter)).unwrap();
        assert_close(&values(parameter), &expected);
    }
}

#[test]
fn a_graph_kept_over_a_step_costs_a_copy() {
    let device = device();
    let parameter = parameter(&device);
    let mut optimizer = Sgd::new(named(&parameter), 0.1).unwrap();
    let address = || parameter.tensor().storage().allocation().block().address;
    let memory = device.default_allocator().unwrap();
    // Returns how many more buffers exist after a step than before it.
    let step = |optimizer: &mut Sgd| {
        let gradients = gradients(&parameter);
        let (before, at) = (memory.stats().live_allocs, address());
        optimizer.step(gradients).unwrap();
        // The gradient is gone.
        (memory.stats().live_allocs + 1 - before, address() != at)
    };
    assert_eq!(step(&mut optimizer), (0, false), "in place");
    let old = values(&parameter);
    let loss = parameter.tensor().square().unwrap().sum_all().unwrap();
    assert_eq!(step(&mut optimizer), (1, true), "the graph has the old values");
    assert_ne!(values(&parameter), old);
    let gradients = loss.backward_stale().unwrap();
    let expected: Vec<f64> = old.iter().map(|value| 2.0 * value).collect();
    assert_close(&gradients.get(&parameter.tensor()).unwrap().to_vec::<f64>().unwrap(), &expected);
    drop((loss, gradients));
    assert_eq!(step(&mut optimizer), (0, false), "in place again");
}

#[test]
fn sgd_goes_against_the_gradient() {
    let p = parameter(&device());
    compare(Sgd::new(named(&p), 0.1).unwrap(), &p, |_, value, g| *value -= 0.1 * g);
}

#[test]
fn sgd_keeps_momentum_and_decays_weights() {
    let p = parameter(&device());
    let sgd = Sgd::new(named(&p), 0.1).unwrap().with_momentum(0.9).unwrap().with_weight_decay(0.01).unwrap();
    let mut m = [0.0; 3];
    compare(sgd, &p, |i, value, g| {
        m[i] = 0.9 * m[i] + g + 0.01 * *value;
        *value -= 0.1 * m[i];
    });
}

#[test]
fn changing_momentum_keeps_its_buffers() {
    let p = parameter(&device());
    let name = "layer.weight.momentum";
    let mut sgd = Sgd::new(named(&p), 0.1).unwrap();
    assert!(!sgd.state().unwrap().contains_key(name));
    sgd.step(gradients(&p)).unwrap();
    let mut sgd = sgd.with_momentum(0.9).unwrap();
    sgd.step(gradients(&p)).unwrap();
    let means = sgd.state().unwrap()[name].clone();
    let sgd = sgd.with_momentum(0.5).unwrap();
    assert_eq!(sgd.state().unwrap()[name], means);
    let sgd = sgd.with_momentum(0.0).unwrap();
    assert!(!sgd.state().unwrap().contains_key(name));
    // After another call, momentum starts from 0 again.
    let again = sgd.with_momentum(0.9).unwrap().state().unwrap()[name].clone();
    assert_ne!(again, means);

    let mut rms = RmsProp::new(named(&p), 0.1).unwrap();
    rms.step(gradients(&p)).unwrap();
    let variance = rms.state().unwrap()["layer.weight.variance"].clone();
    let state = rms.with_momentum(0.9).unwrap().state().unwrap();
    assert!(state.contains_key(name));
    assert_eq!(state["layer.weight.variance"], variance);
}

#[test]
fn nesterovs_variant_looks_ahead() {
    let p = parameter(&device());
    let sgd = Sgd::new(named(&p), 0.1).unwrap().with_momentum(0.9).unwrap().with_nesterov().unwrap();
    let mut m = [0.0; 3];
    compare(sgd, &p, |i, value, g| {
        m[i] = 0.9 * m[i] + g;
        *value -= 0.1 * (g + 0.9 * m[i]);
    });
}

/// Algorithm 1 of Kingma and Ba (2015); the decay of Loshchilov and Hutter (2019) if `decoupled`.
fn adam(decay: f64, decoupled: bool) -> impl FnMut(usize, &mut f64, f64) {
    let (mut m, mut v, mut t) = ([0.0; 3], [0.0; 3], [0; 3]);
    move |i, value, g| {
        let g = if decoupled { g } else { g + decay * *value };
        t[i] += 1;
        m[i] = 0.9 * m[i] + (1.0 - 0.9) * g;
        v[i] = 0.99 * v[i] + (1.0 - 0.99) * g * g;
        let mean: f64 = m[i] / (1.0 - 0.9f64.powi(t[i]));
        let variance: f64 = v[i] / (1.0 - 0.99f64.powi(t[i]));
        if decoupled {
            *value -= 0.1 * decay * *value;
        }
        *value -= 0.1 * mean / (variance.sqrt() + 1e-6);
    }
}

#[test]
fn adam_is_algorithm_1_of_its_paper() {
    let p = parameter(&device());
    let optimizer =
        Adam::new(named(&p), 0.1).unwrap().with_betas(0.9, 0.99).unwrap().with_epsilon(1e-6).unwrap();
    compare(optimizer, &p, adam(0.0, false));
}

#[test]
fn adam_adds_weight_decay_to_gradients_and_adamw_to_parameters() {
    let device = device();
    let p = parameter(&device);
    let coupled =
        Adam::new(named(&p), 0.1).unwrap().with_betas(0.9, 0.99).unwrap().with_epsilon(1e-6).unwrap();
    compare(coupled.with_weight_decay(0.1).unwrap(), &p, adam(0.1, false));
    let p = parameter(&device);
    let decoupled =
        AdamW::new(named(&p), 0.1).unwrap().with_betas(0.9, 0.99).unwrap().with_epsilon(1e-6).unwrap();
    compare(decoupled.with_weight_decay(0.1).unwrap(), &p, adam(0.1, true));
}

/// The parameters after 20 steps of PyTorch 2.15 with `amsgrad=True`, in f64.
#[test]
fn amsgrad_is_that_of_pytorch() {
    let device = device();
    type Make = fn(Vec<(String, Parameter)>) -> Result<Box<dyn Optimizer>, Error>;
    let cases: [(Make, [f64; 3]); 3] = [
        (
            |p| Ok(Box::new(Adam::new(p, 0.1)?.with_betas(0.9, 0.9)?.with_epsilon(1e-6)?.with_amsgrad()?)),
            [-0.2538257104963262, -0.21321155874613573, 2.442773241885947],
        ),
        (
            |p| {
                let adam = Adam::new(p, 0.1)?.with_betas(0.9, 0.9)?.with_epsilon(1e-6)?;
                Ok(Box::new(adam.with_weight_decay(0.1)?.with_amsgrad()?))
            },
            [-0.2538257175564586, -0.21321011840258416, 2.44277258478889],
        ),
        (
            |p| {
                let adam = AdamW::new(p, 0.1)?.with_betas(0.9, 0.9)?.with_epsilon(1e-6)?;
                Ok(Box::new(adam.with_amsgrad()?.with_weight_decay(0.1)?))
            },
            [-0.23473812162718471, -0.08214016020658005, 2.182221552434601],
        ),
    ];
    for (make, expected) in cases {
        let p = parameter(&device);
        let mut optimizer = make(named(&p)).unwrap();
        for _ in 0..20 {
            optimizer.step(gradients(&p)).unwrap();
        }
        assert_close(&values(&p), &expected);
        let ledger = device.default_allocator().unwrap().ledger();
        assert_eq!(ledger.category(Category::OptimizerState), 3 * ledger.category(Category::Parameter));
        assert!(optimizer.settings().contains(&("amsgrad".to_owned(), "true".to_owned())));
    }
}

#[test]
fn rms_prop_divides_by_the_root_of_the_mean_of_squares() {
    let p = parameter(&device());
    let optimizer =
        RmsProp::new(named(&p), 0.1).unwrap().with_smoothing(0.9).unwrap().with_epsilon(1e-6).unwrap();
    let mut v = [0.0; 3];
    compare(optimizer.with_weight_decay(0.01).unwrap(), &p, |i, value, g| {
        let g = g + 0.01 * *value;
        v[i] = 0.9 * v[i] + (1.0 - 0.9) * g * g;
        *value -= 0.1 * g / (f64::sqrt(v[i]) + 1e-6);
    });
}

#[test]
fn rms_prop_keeps_momentum_of_scaled_gradients() {
    let p = parameter(&device());
    let (mut v, mut m) = ([0.0; 3], [0.0; 3]);
    compare(RmsProp::new(named(&p), 0.01).unwrap().with_momentum(0.8).unwrap(), &p, |i, value, g| {
        v[i] = 0.99 * v[i] + (1.0 - 0.99) * g * g;
        m[i] = 0.8 * m[i] + g / (f64::sqrt(v[i]) + 1e-8);
        *value -= 0.01 * m[i];
    });
}

/// Algorithm 2 of Chen et al. (2023).
#[test]
fn lion_takes_steps_of_one_size() {
    let p = parameter(&device());
    let mut m = [0.0; 3];
    let lion =
        Lion::new(named(&p), 0.1).unwrap().with_betas(0.9, 0.95).unwrap().with_weight_decay(0.2).unwrap();
    compare(lion, &p, |i, value, g| {
        let towards: f64 = 0.9 * m[i] + (1.0 - 0.9) * g;
        *value -= 0.1 * (towards.signum() + 0.2 * *value);
        m[i] = 0.95 * m[i] + (1.0 - 0.95) * g;
    });
}

#[test]
fn gradients_that_stay_zero_move_nothing_and_make_no_nan() {
    let device = device();
    let p = Parameter::new(Tensor::zeros_of(&device, [3], DType::F64).unwrap()).unwrap();
    let without_means: [Box<dyn Optimizer>; 2] = [
        Box::new(Lion::new(named(&p), 0.1).unwrap().with_betas(0.0, 0.0).unwrap()),
        Box::new(AdamW::new(named(&p), 0.1).unwrap().with_betas(0.0, 0.0).unwrap()),
    ];
    for mut optimizer in OPTIMIZERS.iter().map(|case| (case.make)(named(&p)).unwrap()).chain(without_means) {
        optimizer.step(gradients(&p)).unwrap();
        assert_eq!(values(&p), [0.0; 3], "{optimizer:?}");
    }
}

#[test]
fn every_optimizer_follows_pytorchs_formula_and_keeps_its_states() {
    let missing: Vec<_> = OptimizerRule::all()
        .map(|rule| rule.name())
        .filter(|name| OPTIMIZERS.iter().all(|case| case.op() != *name))
        .collect();
    assert!(missing.is_empty(), "add {missing:?} to ops_table/optimizers.rs");
    for case in OPTIMIZERS {
        let OptimizerCase { name, states, make, expected } = case;
        let device = device();
        let p = parameter(&device);
        let mut optimizer = make(named(&p)).unwrap();
        for _ in 0..20 {
            optimizer.step(gradients(&p)).unwrap();
        }
        for (a, b) in values(&p).into_iter().zip(expected) {
            assert!((a - b).abs() <= 1e-12 * b.abs(), "{name}: {a}, expected {b}");
        }
        let ledger = device.default_allocator().unwrap().ledger();
        let bytes = [Category::OptimizerState, Category::Parameter].map(|category| ledger.category(category));
        assert_eq!(bytes[0], states * bytes[1], "{name}");
        assert_eq!(optimizer.name(), case.op());
    }
}

#[test]
fn bias_correction_starts_with_the_first_gradient() {
    let device = device();
    let (early, late) = (parameter(&device), parameter(&device));
    let parameters = [("a", &early), ("b", &late)].map(|(name, p)| (name.to_owned(), p.clone())).to_vec();
    let mut adam = Adam::new(parameters, 0.1).unwrap();
    for _ in 0..5 {
        adam.step(gradients(&early)).unwrap();
        assert_eq!(values(&late), START);
    }
    let mut alone = Adam::new(named(&early), 0.1).unwrap();
    early.set(&Tensor::from_slice(&device, &START, [3]).unwrap()).unwrap();
    alone.step(gradients(&early)).unwrap();
    adam.step(gradients(&late)).unwrap();
    assert_eq!(values(&late), values(&early));
}

#[test]
fn a_parameter_of_two_layers_is_stepped_once_and_has_one_state() {
    let device = device();
    let p = parameter(&device);
    let mut twice = named(&p);
    twice.extend(named(&p));
    let sgd = Sgd::new(twice, 0.1).unwrap().with_momentum(0.9).unwrap();
    let ledger = device.default_allocator().unwrap().ledger();
    assert_eq!(ledger.category(Category::OptimizerState), ledger.category(Category::Parameter));
    let mut m = [0.0; 3];
    compare(sgd, &p, |i, value, g| {
        m[i] = 0.9 * m[i] + g;
        *value -= 0.1 * m[i];
    });
}

#[test]
fn the_learning_rate_can_be_changed_between_steps() {
    let p = parameter(&device());
    let mut sgd = Sgd::new(named(&p), 0.1).unwrap();
    sgd.set_learning_rate(0.0).unwrap();
    sgd.step(gradients(&p)).unwrap();
    assert_eq!((values(&p), sgd.learning_rate()), (START.to_vec(), 0.0));
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(sgd.set_learning_rate(bad), Err(Error::BadArgument { argument: "lr", .. })));
    }
    assert_eq!(sgd.learning_rate(), 0.0);
}

#[test]
fn hyperparameters_out_of_range_are_refused_by_name() {
    let p = parameter(&device());
    let argument = |result: Result<(), Error>| match result {
        Err(Error::BadArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(argument(Sgd::new(named(&p), -0.1).map(drop)), "lr");
    assert_eq!(argument(Sgd::new(named(&p), 0.1).unwrap().with_momentum(1.0).map(drop)), "momentum");
    assert_eq!(
        argument(Sgd::new(named(&p), 0.1).unwrap().with_weight_decay(f64::NAN).map(drop)),
        "weight_decay"
    );
    assert_eq!(argument(Sgd::new(named(&p), 0.1).unwrap().with_nesterov().map(drop)), "momentum");
    let nesterov = Sgd::new(named(&p), 0.1).unwrap().with_momentum(0.9).unwrap().with_nesterov().unwrap();
    assert_eq!(argument(nesterov.with_momentum(0.0).map(drop)), "momentum");
    let (rms, lion) = (|| RmsProp::new(named(&p), 0.1).unwrap(), || Lion::new(named(&p), 0.1).unwrap());
    assert_eq!(argument(RmsProp::new(named(&p), -1.0).map(drop)), "lr");
    assert_eq!(argument(RmsProp::new(named(&p), 0.1).unwrap().with_momentum(-0.5).map(drop)), "momentum");
    assert_eq!(argument(rms().with_smoothing(1.0).map(drop)), "smoothing");
    assert_eq!(argument(rms().with_epsilon(-1e-8).map(drop)), "epsilon");
    assert_eq!(argument(rms().with_weight_decay(f64::NAN).map(drop)), "weight_decay");
    assert_eq!(argument(Lion::new(named(&p), f64::NAN).map(drop)), "lr");
    assert_eq!(argument(lion().with_betas(1.5, 0.9).map(drop)), "beta1");
    assert_eq!(argument(lion().with_betas(0.9, 1.0).map(drop)), "beta2");
    assert_eq!(argument(lion().with_weight_decay(-0.1).map(drop)), "weight_decay");
    assert_eq!(
        argument(Adagrad::new(named(&p), 0.1).unwrap().with_initial_sum(-1.0).map(drop)),
        "initial_sum"
    );
    assert_eq!(argument(Adadelta::new(named(&p), 1.0).unwrap().with_rho(1.0).map(drop)), "rho");
    assert_eq!(
        argument(NAdam::new(named(&p), 0.1).unwrap().with_momentum_decay(f64::NAN).map(drop)),
        "momentum_decay"
    );
    let adam = || Adam::new(named(&p), 0.1).unwrap();
    assert_eq!(argument(Adam::new(named(&p), f64::INFINITY).map(drop)), "lr");
    assert_eq!(argument(adam().with_betas(1.0, 0.9).map(drop)), "beta1");
    assert_eq!(argument(adam().with_betas(0.9, -0.1).map(drop)), "beta2");
    assert_eq!(argument(adam().with_epsilon(0.0).map(drop)), "epsilon");
    assert_eq!(argument(adam().with_weight_decay(-1.0).map(drop)), "weight_decay");
}

#[test]
fn a_step_writes_in_place_and_takes_no_memory() {
    let device = device();
    let p = parameter(&device);
    let address = || p.tensor().storage().allocation().block().address;
    let (before, mut adam) = (address(), Adam::new(named(&p), 0.1).unwrap());
    let gradients = gradients(&p);
    let allocs = device.default_allocator().unwrap().stats().num_allocs;
    adam.step(gradients).unwrap();
    assert_eq!(address(), before);
    assert_eq!(device.default_allocator().unwrap().stats().num_allocs, allocs);
    let ledger = device.default_allocator().unwrap().ledger();
    assert_eq!((ledger.category(Category::Gradient), ledger.category(Category::OptimizerState)), (0, 512));
}

#[test]
fn a_step_leaves_tensors_that_were_taken_before_as_they_were() {
    let p = parameter(&device());
    let before = p.tensor();
    Sgd::new(named(&p), 0.1).unwrap().step(gradients(&p)).unwrap();
    assert_eq!(before.to_vec::<f64>().unwrap(), START);
    assert_ne!(values(&p), START);
}

#[test]
fn a_backward_after_a_step_is_stale() {
    let device = device();
    let p = parameter(&device);
    for OptimizerCase { make, .. } in OPTIMIZERS {
        p.set(&Tensor::from_slice(&device, &START, [3]).unwrap()).unwrap();
        let mut optimizer = make(named(&p)).unwrap();
        // A program may compute two losses before the step for the first one.
        let late = p.tensor().square().unwrap().sum_all().unwrap();
        let inside = p.clone();
        let x = Tensor::ones_of(&device, [3], DType::F64).unwrap();
        let later = checkpoint(&x, move |x| x.mul(&inside.tensor())?.square()?.sum_all()).unwrap();
        optimizer.step(gradients(&p)).unwrap();
        assert_ne!(values(&p), START);
        for loss in [late, later] {
            assert!(matches!(loss.backward(), Err(Error::StaleBackward { .. })), "{optimizer:?}");
            let gradients = loss.backward_stale().unwrap();
            let expected = START.map(|value| 2.0 * value);
            assert_eq!(
                gradients.get(&p.tensor()).unwrap().to_vec::<f64>().unwrap(),
                expected,
                "{optimizer:?}"
            );
        }
    }
}

#[test]
fn a_step_without_memory_for_its_copies_changes_nothing() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let large = || Parameter::new(Tensor::ones(&device, [50 << 10]).unwrap()).unwrap();
    let (a, b) = (large(), large());
    let parameters = [("a", &a), ("b", &b)].map(|(name, p)| (name.to_owned(), p.clone())).to_vec();
    let mut sgd = Sgd::new(parameters, 0.1).unwrap();
    let step = |sgd: &mut Sgd| {
        let half = |p: &Parameter| p.tensor().square().unwrap().sum_all().unwrap().mul_scalar(0.5).unwrap();
        sgd.step(half(&a).add(&half(&b)).unwrap().backward().unwrap())
    };
    let first = |p: &Parameter| p.tensor().to_vec::<f32>().unwrap()[0];
    // Two parameters and two gradients of 200 KiB each leave room for one copy, and both parameters need one.
    let held = (a.tensor(), b.tensor());
    let sum_of = |p: &Parameter| p.tensor().narrow(0, 0, 9).unwrap().square().unwrap().sum_all().unwrap();
    let kept = sum_of(&a);
    let error = step(&mut sgd).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!((first(&a), first(&b)), (1.0, 1.0));
    drop(held);
    // The failed step made one of the copies, but the earlier graph is not stale.
    kept.backward().unwrap();
    step(&mut sgd).unwrap();
    assert_eq!((first(&a), first(&b)), (0.9, 0.9));
}

#[test]
fn a_step_of_a_converted_parameter_changes_nothing() {
    let device = device();
    let ones = |_| Parameter::new(Tensor::ones(&device, [3]).unwrap()).unwrap();
    let [first, second] = [0, 1].map(ones);
    let named =
        || [("net.a", &first), ("net.b", &second)].map(|(name, p)| (name.to_owned(), p.clone())).to_vec();
    let step = |optimizer: &mut dyn Optimizer| {
        let sum = |p: &Parameter| p.tensor().sum_all().unwrap().to_dtype(DType::F64).unwrap();
        optimizer.step(sum(&first).add(&sum(&second)).unwrap().backward().unwrap())
    };
    let with_state = OPTIMIZERS.iter().filter(|case| case.states > 0);
    let mut optimizers: Vec<_> = with_state.map(|case| (case.make)(named()).unwrap()).collect();
    let mut plain = Sgd::new(named(), 0.5).unwrap();
    second.convert(DType::F64).unwrap();
    for optimizer in &mut optimizers {
        let message = step(optimizer).unwrap_err().to_string();
        assert!(message.contains("net.b of type f64, whose state is kept in f32"), "{message}");
        assert_eq!(first.tensor().to_vec::<f32>().unwrap(), [1.0; 3], "{optimizer:?}");
    }
    // The optimizer without state needs no memory.
    step(&mut plain).unwrap();
    assert_eq!(first.tensor().to_vec::<f32>().unwrap(), [0.5; 3]);
    assert_eq!(second.tensor().to_vec::<f64>().unwrap(), [0.5; 3]);
}

#[test]
fn gradients_from_before_a_conversion_are_refused() {
    let device = device();
    type Conversion = fn(&Parameter);
    let conversions: [(Conversion, DType); 4] = [
        (|p| p.convert(DType::BF16).unwrap(), DType::BF16),
        // Converting back to the former type also creates another leaf.
        (|p| [DType::F16, DType::F32].iter().for_each(|&dtype| p.convert(dtype).unwrap()), DType::F32),
        (|p| (0..9).for_each(|i| p.convert([DType::F64, DType::BF16][i % 2]).unwrap()), DType::F64),
        (|p| p.convert(DType::F64).unwrap(), DType::F64),
    ];
    for (convert, is) in conversions {
        let ones = |_| Parameter::new(Tensor::ones(&device, [3]).unwrap()).unwrap();
        let [first, second, third] = [0, 1, 2].map(ones);
        let all = [("net.a", &first), ("net.b", &second), ("net.c", &third)];
        let named = || all.map(|(name, p)| (name.to_owned(), p.clone())).to_vec();
        let sum = |p: &Parameter| p.tensor().sum_all().unwrap().to_dtype(DType::F64).unwrap();
        let loss = || sum(&first).add(&sum(&second)).unwrap().add(&sum(&third)).unwrap();
        let mut optimizers: Vec<_> = OPTIMIZERS.iter().map(|case| (case.make)(named()).unwrap()).collect();
        let mut plain = Sgd::new(named(), 0.1).unwrap();
        let gradients: Vec<_> = optimizers.iter().map(|_| loss().backward().unwrap()).collect();
        // This pass saves no values, and its backward runs after the conversion.
        let late = loss();
        // These gradients come from the parameter before and after the conversion.
        let mut both = sum(&second).backward().unwrap();
        convert(&second);
        assert_eq!(second.tensor().dtype(), is);
        both.accumulate(&mut loss().backward().unwrap()).unwrap();
        let passes = gradients.into_iter().chain([late.backward().unwrap(), both]);
        for (at, gradients) in passes.enumerate() {
            let at = at.min(optimizers.len() - 1);
            let optimizer = &mut optimizers[at];
            let before = optimizer.state().unwrap();
            let error = optimizer.step(gradients).unwrap_err();
            let named = matches!(
                &error,
                Error::StaleGradient { parameter, is: now, given: DType::F32, .. } if parameter == "net.b" && *now == is
            );
            assert!(named, "{error}");
            assert_eq!(optimizer.state().unwrap(), before);
            for p in [&first, &second, &third] {
                assert_eq!(p.tensor().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), [1.0; 3]);
            }
        }
        // A new pass over the converted parameter still works.
        plain.step(loss().backward().unwrap()).unwrap();
        assert!(second.tensor().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()[0] < 1.0);
    }
}

#[test]
fn a_converted_parameter_without_a_gradient_is_skipped() {
    let device = device();
    let ones = |_| Parameter::new(Tensor::ones(&device, [3]).unwrap()).unwrap();
    let [frozen, first, idle, last] = [0, 1, 2, 3].map(ones);
    let list = [("a", &first), ("b", &idle), ("c", &last)].map(|(name, p)| (name.to_owned(), p.clone()));
    let mut sgd = Sgd::new(list.to_vec(), 0.5).unwrap();
    idle.convert(DType::BF16).unwrap();
    let sum = |p: &Parameter| p.tensor().sum_all().unwrap();
    let gradients = || sum(&frozen).add(&sum(&first)).unwrap().add(&sum(&last)).unwrap().backward().unwrap();
    sgd.step_partial(gradients()).unwrap();
    let old = gradients();
    // The optimizer does not own the converted parameter.
    frozen.convert(DType::F16).unwrap();
    sgd.step_partial(old).unwrap();
    let values = |p: &Parameter| p.tensor().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()[0];
    assert_eq!([&frozen, &first, &idle, &last].map(values), [1.0, 0.0, 1.0, 0.0]);
}

#[test]
fn state_that_finds_no_memory_makes_no_optimizer_and_keeps_none() {
    let device = Runtime::builder().pool(Bytes::mib(1)).threads(1).build().unwrap().cpu().unwrap();
    let p = Parameter::new(Tensor::ones(&device, [100 << 10]).unwrap()).unwrap();
    let error = Adam::new(named(&p), 0.1).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(device.default_allocator().unwrap().stats().live_allocs, 1);
}

#[test]
fn optimizer_memory_is_charged_to_its_layer() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    let net = Sequential::new().with("fc1", Linear::new(&device, 2, 3, &Rng::new(0)).unwrap());
    runtime.tracker().reset();
    let mut adamw = AdamW::new(net.parameters(), 0.1).unwrap();
    let rows = || {
        let totals = runtime.tracker().op_totals();
        let rows = totals.iter().filter(|row| row.phase == Phase::Optimizer && row.totals.calls > 0);
        rows.map(|row| (row.op, row.module.path(), row.totals.calls, row.totals.persistent_bytes))
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(), [("adamw", "fc1".to_owned(), 2, 1024)]);
    let loss = net.forward(&Tensor::ones(&device, [1, 2]).unwrap()).unwrap().sum_all().unwrap();
    adamw.step(loss.backward().unwrap()).unwrap();
    // One more execution, which updates all parameters of the layer.
    assert_eq!(rows(), [("adamw", "fc1".to_owned(), 3, 1024)]);
}
