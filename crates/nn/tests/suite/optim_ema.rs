//! Exponential moving averages of parameters.

use bfc_core::{Bytes, Category};
use highwater_nn::checkpoint::Checkpoint;
use highwater_nn::modules::{Linear, Module};
use highwater_nn::optim::{AdamW, Ema, Optimizer};
use highwater_tensor::{DType, Device, Error, Parameter, Result, Rng, Runtime, Tensor};

fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn parameter(device: &Device, values: &[f64], dtype: DType) -> Parameter {
    let values = Tensor::from_slice(device, values, [values.len()]).unwrap();
    Parameter::new(values.to_dtype(dtype).unwrap()).unwrap()
}

fn named(parameter: &Parameter) -> Vec<(String, Parameter)> {
    vec![("layer.weight".to_owned(), parameter.clone())]
}

fn values(parameter: &Parameter) -> Vec<f64> {
    parameter.value().to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn set(parameter: &Parameter, value: f64) {
    let old = parameter.value();
    parameter.set(&Tensor::full_of(old.device(), old.dims(), value, old.dtype()).unwrap()).unwrap();
}

fn averaged(ema: &Ema, parameter: &Parameter) -> Vec<f64> {
    ema.with_averages(|| Ok(values(parameter))).unwrap()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    let is_close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance * b.abs().max(1.0));
    assert!(found.len() == expected.len() && is_close, "{found:?} is not {expected:?}");
}

#[test]
fn averages_follow_their_formula_in_each_type() {
    for (dtype, tolerance) in
        [(DType::F64, 1e-15), (DType::F32, 1e-6), (DType::BF16, 4e-3), (DType::F16, 5e-4)]
    {
        let p = parameter(&cpu(), &[1.0, -2.0, 0.5], dtype);
        let mut ema = Ema::new(named(&p), 0.9).unwrap();
        let mut expected = vec![1.0, -2.0, 0.5];
        for step in 0..20 {
            let value = f64::from(step) * 0.25;
            set(&p, value);
            ema.update().unwrap();
            expected.iter_mut().for_each(|average| *average = 0.9 * *average + 0.1 * value);
            assert_close(&averaged(&ema, &p), &expected, tolerance);
            assert_eq!(values(&p), [value; 3], "the own values are back");
        }
        assert_eq!(ema.updates(), 20);
    }
}

/// Changes of 1/1000 are below the precision of bf16.
#[test]
fn averages_of_16_bit_floats_are_kept_in_f32() {
    let p = parameter(&cpu(), &[1.0], DType::BF16);
    let mut ema = Ema::new(named(&p), 0.999).unwrap();
    set(&p, 2.0);
    for _ in 0..1000 {
        ema.update().unwrap();
    }
    let expected = 2.0 - 0.999_f64.powi(1000);
    let state = ema.state().unwrap();
    let average = &state["layer.weight.average"];
    assert_eq!(average.dtype(), DType::F32);
    let found = average.to_tensor(&cpu()).unwrap().to_vec::<f32>().unwrap();
    assert_close(&[f64::from(found[0])], &[expected], 1e-5);
}

#[test]
fn a_warm_up_lowers_the_first_decays() {
    let p = parameter(&cpu(), &[1.0], DType::F64);
    let mut ema = Ema::new(named(&p), 0.2).unwrap().with_warm_up();
    set(&p, 0.0);
    let mut expected = 1.0;
    // (1 + n) / (10 + n) is 0.1, 0.1818, 0.25: the third is above the decay.
    for decay in [0.1, 2.0 / 11.0, 0.2, 0.2] {
        ema.update().unwrap();
        expected *= decay;
        assert_close(&averaged(&ema, &p), &[expected], 1e-15);
    }
}

#[test]
fn own_values_return_after_errors_and_panics() {
    let p = parameter(&cpu(), &[1.0], DType::F32);
    let ema = Ema::new(named(&p), 0.5).unwrap();
    set(&p, 3.0);
    let error = ema.with_averages(|| -> Result<()> { Err(Error::NoGraph) });
    assert_eq!((error, values(&p)), (Err(Error::NoGraph), vec![3.0]));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ema.with_averages(|| -> Result<()> { panic!("in an evaluation, at {:?}", values(&p)) })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<String>().unwrap(), "in an evaluation, at [1.0]");
    assert_eq!(values(&p), [3.0]);
}

#[test]
fn frozen_parameters_have_no_average_until_they_are_unfrozen() {
    let device = cpu();
    let state_bytes = || device.default_allocator().unwrap().ledger().category(Category::OptimizerState);
    let [trained, frozen] = [1.0, 5.0].map(|value| parameter(&device, &[value; 64], DType::F32));
    frozen.freeze();
    let list = [("a.p", &trained), ("b.p", &frozen)].map(|(path, p)| (path.to_owned(), p.clone())).to_vec();
    let mut ema = Ema::new(list.clone(), 0.5).unwrap();
    assert_eq!(state_bytes(), 256);
    ema.update().unwrap();
    assert_eq!((state_bytes(), averaged(&ema, &frozen)), (256, vec![5.0; 64]));
    let without = ema.state().unwrap();
    assert!(!without.contains_key("b.p.average"));
    // A state that says nothing about a parameter is of another model.
    for lacks in ["a.p.average", "b.p.updates"] {
        let mut part = without.clone();
        part.remove(lacks).unwrap();
        assert!(matches!(ema.load_state(&part), Err(Error::Mismatch(_))), "{lacks}");
        assert_eq!(ema.state().unwrap(), without);
    }
    frozen.unfreeze();
    ema.update().unwrap();
    assert_eq!(state_bytes(), 512);
    set(&frozen, 7.0);
    ema.update().unwrap();
    assert_eq!(averaged(&ema, &frozen), [6.0; 64]);
    // The saved averages are those of the frozen time.
    ema.load_state(&without).unwrap();
    assert_eq!((state_bytes(), ema.updates()), (256, 1));
}

#[test]
fn states_that_do_not_match_are_refused_and_change_nothing() {
    let p = parameter(&cpu(), &[1.0, 2.0], DType::F32);
    let mut ema = Ema::new(named(&p), 0.5).unwrap();
    let other = |path: &str, size: usize| {
        let p = parameter(&cpu(), &vec![0.0; size], DType::F32);
        Ema::new(vec![(path.to_owned(), p)], 0.5).unwrap().state().unwrap()
    };
    let before = ema.state().unwrap();
    for state in [other("layer.bias", 2), other("layer.weight", 3), Default::default()] {
        assert!(matches!(ema.load_state(&state), Err(Error::Mismatch(_))));
        assert_eq!(ema.state().unwrap(), before);
    }
    p.convert(DType::F64).unwrap();
    assert!(matches!(ema.update(), Err(Error::BadArgument { argument: "parameters", .. })));
    assert!(matches!(Ema::new(named(&p), 1.0), Err(Error::BadArgument { argument: "decay", .. })));
    assert!(matches!(Ema::new(Vec::new(), 0.9), Err(Error::BadArgument { argument: "parameters", .. })));
}

fn step(layer: &Linear, optimizer: &mut AdamW, ema: &mut Ema, number: u64) -> Result<()> {
    let device = layer.weight().value().device().clone();
    let x = Tensor::normal(&device, [8, 4], 0.0, 1.0, &Rng::new(number))?;
    optimizer.step(layer.forward(&x)?.square()?.mean_all()?.backward()?)?;
    ema.update()
}

#[test]
fn a_resumed_run_has_the_averages_of_the_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let make = |seed| {
        let layer = Linear::new(&cpu(), 4, 3, &Rng::new(seed)).unwrap();
        let adam = AdamW::new(layer.parameters(), 0.1).unwrap();
        let ema = Ema::new(layer.parameters(), 0.9).unwrap().with_warm_up();
        (layer, adam, ema)
    };
    let (layer, mut adam, mut ema) = make(0);
    for number in 0..10 {
        if number == 4 {
            let checkpoint = Checkpoint::of(&layer).unwrap().with_optimizer(&adam).unwrap();
            checkpoint.with_ema(&ema).unwrap().save(&path).unwrap();
        }
        step(&layer, &mut adam, &mut ema, number).unwrap();
    }
    let (resumed, mut of_resumed, mut averages) = make(7);
    let checkpoint = Checkpoint::load(&path).unwrap();
    checkpoint.restore_all(&resumed, &mut of_resumed).unwrap();
    checkpoint.restore_ema(&mut averages).unwrap();
    for number in 4..10 {
        step(&resumed, &mut of_resumed, &mut averages, number).unwrap();
    }
    assert_eq!(averages.state().unwrap(), ema.state().unwrap());
    assert_eq!(Checkpoint::of(&resumed).unwrap(), Checkpoint::of(&layer).unwrap());
    // A file without averages, and a parameter with the reserved prefix.
    let plain = Checkpoint::of(&layer).unwrap();
    assert!(plain.restore_ema(&mut averages).unwrap_err().to_string().contains("averages of parameters"));
    let reserved = plain.renamed(|name| Some(format!("ema/{name}"))).unwrap().save(&path).unwrap_err();
    assert!(reserved.to_string().contains("the prefix \"ema/\" is reserved"), "{reserved}");
}

#[test]
fn dry_runs_predict_averages_and_memory_that_lacks_changes_nothing() {
    let run = |device: &Device| {
        let layer = Linear::new(device, 32, 32, &Rng::new(0))?;
        let mut ema = Ema::new(layer.parameters(), 0.9)?;
        ema.update()?;
        ema.with_averages(|| layer.forward(&Tensor::ones(device, [1, 32])?).map(drop))?;
        Ok::<_, Error>((layer, ema))
    };
    let peak = |device: &Device| device.default_allocator().unwrap().stats().peak_bytes_in_use;
    let (real, dry) = (cpu(), Runtime::builder().threads(1).build().unwrap().dry().unwrap());
    let (layer, _ema) = run(&real).unwrap();
    run(&dry).unwrap();
    assert_eq!(peak(&dry), peak(&real));
    drop(layer);
    // The parameters and averages fit, but not the copies of the own values.
    let small =
        Runtime::builder().threads(1).pool(Bytes(2 * (4096 + 256) + 1024)).build().unwrap().cpu().unwrap();
    let layer = Linear::new(&small, 32, 32, &Rng::new(0)).unwrap();
    let ema = Ema::new(layer.parameters(), 0.9).unwrap();
    let before = layer.weight().value().to_vec::<f32>().unwrap();
    let error = ema.with_averages(|| -> Result<()> { panic!("there is no memory") }).unwrap_err();
    assert!(error.out_of_memory().is_some(), "{error}");
    assert_eq!(layer.weight().value().to_vec::<f32>().unwrap(), before);
}

#[test]
fn own_values_return_without_memory() {
    let pool = Bytes::kib(32);
    let device = Runtime::builder().threads(1).pool(pool).build().unwrap().cpu().unwrap();
    let layer = Linear::new(&device, 32, 32, &Rng::new(0)).unwrap();
    let mut ema = Ema::new(layer.parameters(), 0.5).unwrap();
    for (_, parameter) in layer.parameters() {
        set(&parameter, 3.0);
    }
    ema.update().unwrap();
    // The graph keeps the averages, and the other tensors the rest of the memory.
    let (loss, averages, full) = ema
        .with_averages(|| {
            let loss = layer.weight().tensor().square()?.sum_all()?;
            let averages = layer.weight().value().to_vec::<f32>()?;
            let full: Vec<_> = std::iter::from_fn(|| Tensor::ones(&device, [1]).ok()).collect();
            Ok((loss, averages, full))
        })
        .unwrap();
    assert!(Tensor::ones(&device, [32, 32]).is_err(), "there is memory for a copy of the weights");
    assert_eq!(layer.weight().value().to_vec::<f32>().unwrap(), [3.0; 32 * 32]);
    assert_ne!(averages, [3.0; 32 * 32]);
    drop(full);
    assert!(matches!(loss.backward(), Err(Error::StaleBackward { .. })));
    // The next graph has the own values.
    let loss = layer.weight().tensor().square().unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let of_weight = gradients.get(&layer.weight().tensor()).unwrap();
    assert_eq!(of_weight.to_vec::<f32>().unwrap(), [6.0; 32 * 32]);
}
