//! Training in mixed precision: losses follow f32, and dry runs, parts of runs and recomputation change nothing.

use highwater::distributed::World;
use highwater::nn::recompute::{Recomputation, Recompute};
use highwater::optim::{Ema, LossScaler};
use highwater::prelude::*;
use highwater::train::{Every, Saves, Trainer};
use highwater::{Error, Phase, Result, Runtime, memory_report};

use crate::support::cpu;

/// A network for the classification of inputs of a shape.
type Network = (&'static str, &'static [usize], fn(&Device, &Rng) -> Result<Sequential>);

const CLASSES: usize = 4;

const GPT: Network = ("GPT", &[8, 10, 16], |device, rng| {
    let blocks = Sequential::new()
        .with("0", TransformerBlock::new(device, 16, 2, rng)?.causal())
        .with("1", TransformerBlock::new(device, 16, 2, rng)?.causal());
    let net = Sequential::new().with("blocks", blocks).with("flatten", Flatten);
    Ok(net.with("head", Linear::new(device, 160, CLASSES, rng)?))
});

const NETWORKS: &[Network] = &[
    ("MLP", &[32, 20], |device, rng| {
        let net = Sequential::new().with("up", Linear::new(device, 20, 64, rng)?).with("gelu", Gelu);
        Ok(net.with("head", Linear::new(device, 64, CLASSES, rng)?))
    }),
    ("convolutions", &[16, 3, 6, 6], |device, rng| {
        let net = Sequential::new()
            .with("conv1", Conv2d::new(device, 3, 8, [3, 3], Conv2dOptions::default(), rng)?)
            .with("norm", BatchNorm::new(device, 8)?)
            .with("relu", Relu)
            .with("conv2", Conv2d::new(device, 8, 8, [3, 3], Conv2dOptions::default(), rng)?);
        Ok(net.with("flatten", Flatten).with("head", Linear::new(device, 32, CLASSES, rng)?))
    }),
    GPT,
    ("LSTM", &[8, 10, 16], |device, rng| {
        let net = Sequential::new().with("lstm", Lstm::new(device, 16, 24, rng)?);
        Ok(net.with("flatten", Flatten).with("head", Linear::new(device, 240, CLASSES, rng)?))
    }),
];

/// One run: a network on a device with options of the loop.
struct Case<'a> {
    network: Network,
    device: &'a Device,
    precision: Option<DType>,
    steps: u64,
    saves: Saves,
}

/// The results of a run.
struct Trained {
    losses: Vec<f64>,
    values: Vec<f32>,
    peak_bytes: u64,
}

impl<'a> Case<'a> {
    fn new(network: Network, device: &'a Device, precision: Option<DType>) -> Self {
        Self { network, device, precision, steps: 20, saves: Saves::default() }
    }

    /// Trains on one batch.
    fn train(self) -> Trained {
        let Self { network: (_, shape, network), device, .. } = self;
        let rng = Rng::new(1);
        let model = network(device, &rng).unwrap();
        let x = Tensor::normal(device, shape, 0.0, 1.0, &rng.fork(1)).unwrap();
        let targets: Vec<i64> = (0..shape[0]).map(|row| (row * 7 % CLASSES) as i64).collect();
        let targets = Tensor::from_slice(device, &targets, [shape[0]]).unwrap();
        let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
        let mut losses = Vec::new();
        let trainer = Trainer::new(&model, &mut optimizer).precision(self.precision).saves(self.saves);
        let outcome = trainer.train_steps(
            self.steps,
            |_| Ok(()),
            |()| {
                let loss = model.forward(&x)?.cross_entropy(&targets)?;
                assert_eq!(loss.dtype(), DType::F32);
                if !device.is_dry() {
                    losses.push(loss.item::<f32>()?.into());
                }
                Ok(loss)
            },
        );
        drop(outcome.unwrap());
        let parameters = model.parameters();
        let tensors = parameters.iter().map(|(_, parameter)| parameter.tensor());
        let values = if device.is_dry() {
            Vec::new()
        } else {
            tensors.flat_map(|tensor| tensor.to_vec::<f32>().unwrap()).collect()
        };
        Trained { losses, values, peak_bytes: device.default_allocator().unwrap().stats().peak_bytes_in_use }
    }
}

#[test]
fn losses_follow_f32() {
    for &network in NETWORKS {
        let train = |precision| Case::new(network, &cpu(), precision).train().losses;
        let exact = train(None);
        let (name, first) = (network.0, exact[0]);
        assert!(exact[19] < 0.6 * first, "{name}: {exact:?}");
        assert_eq!(train(Some(DType::F32)), exact, "{name}");
        for (precision, tolerance) in [(DType::BF16, 0.03), (DType::F16, 0.01)] {
            let rounded = train(Some(precision));
            assert_ne!(exact, rounded, "{name}, {precision}");
            for (step, (exact, rounded)) in exact.iter().zip(&rounded).enumerate() {
                let is_near = (exact - rounded).abs() < tolerance * first;
                assert!(is_near, "{name}, {precision}, step {step}: {exact} and {rounded}");
            }
        }
    }
}

#[test]
fn dry_runs_have_the_peak_of_the_real_run() {
    for &network in NETWORKS {
        for precision in [DType::BF16, DType::F16] {
            let real = Case::new(network, &cpu(), Some(precision)).train().peak_bytes;
            let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
            let dry = Case::new(network, &dry, Some(precision)).train().peak_bytes;
            assert_eq!(dry, real, "{}, {precision}", network.0);
        }
    }
}

#[test]
fn a_run_in_two_parts_is_that_of_one_and_saves_f32() {
    let folder = tempfile::tempdir().unwrap();
    for precision in [DType::BF16, DType::F16] {
        let path = folder.path().join(precision.to_string());
        let device = cpu();
        let train =
            |steps, saves| Case { steps, saves, ..Case::new(GPT, &device, Some(precision)) }.train().values;
        let whole = train(12, Saves::default());
        let _ = train(5, Saves::to(&path).every(Every::Steps(5)));
        assert_eq!(train(12, Saves::default().resume(&path)), whole, "{precision}");
        let saved = Checkpoint::load(&path).unwrap();
        assert_eq!(saved.scaler().is_some(), precision == DType::F16);
        assert!(saved.parameters().values().all(|array| array.dtype() == DType::F32), "{precision}");
    }
}

#[test]
fn recomputation_changes_no_bit() {
    let device = cpu();
    let whole = Case::new(GPT, &device, Some(DType::BF16)).train();
    let again = {
        let recompute = Recompute::new().with("blocks", Recomputation::of_blocks(2, 0..2)).enter();
        let again = Case::new(GPT, &device, Some(DType::BF16)).train();
        assert!(recompute.unused().is_empty());
        again
    };
    assert_eq!((again.losses, again.values), (whole.losses, whole.values));
}

#[test]
fn accumulation_copies_each_parameter_once_per_step() {
    let device = cpu();
    let model = Linear::new(&device, 4, 4, &Rng::new(0)).unwrap();
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let x = Tensor::ones(&device, [2, 4]).unwrap();
    let trainer = Trainer::new(&model, &mut optimizer).precision(DType::BF16).accumulate(3);
    drop(trainer.train_steps(5, |_| Ok(()), |()| model.forward(&x)?.square()?.mean_all()).unwrap());
    let report = memory_report(&device).unwrap();
    let casts: Vec<_> =
        report.ops.iter().filter(|row| row.op == "cast_parameter" && row.phase == Phase::Forward).collect();
    // The weight and the bias.
    assert_eq!(casts.iter().map(|row| row.calls).sum::<u64>(), 10);
    assert_eq!(casts.iter().map(|row| row.live_bytes).sum::<u64>(), 0);
}

#[test]
fn averages_stay_f32_and_evaluations_are_mixed() {
    let device = cpu();
    let model = Linear::new(&device, 4, 1, &Rng::new(0)).unwrap();
    let mut optimizer = Sgd::new(model.parameters(), 1e-3).unwrap();
    let mut ema = Ema::new(model.parameters(), 0.5).unwrap();
    let x = Tensor::ones(&device, [2, 4]).unwrap();
    let trainer = Trainer::new(&model, &mut optimizer).precision(DType::BF16).ema(&mut ema).evaluate(|| {
        let y = model.forward(&x)?;
        assert_eq!(y.dtype(), DType::BF16);
        Ok([("mean", f64::from(y.mean_all()?.to_dtype(DType::F32)?.item::<f32>()?))].into())
    });
    let outcome = trainer.train_steps(4, |_| Ok(()), |()| model.forward(&x)?.square()?.mean_all()).unwrap();
    assert!(outcome.figures.get("mean").is_some());
    // Each step changes the weights by less than bf16 resolves.
    let averaged = ema.with_averages(|| model.weight().tensor().to_vec::<f32>()).unwrap();
    assert_ne!(averaged, model.weight().tensor().to_vec::<f32>().unwrap());
    assert_eq!(model.weight().tensor().dtype(), DType::F32);
}

#[test]
fn adapters_merge_in_f32() {
    let device = cpu();
    let options = Lora { targets: vec!["q_proj".to_owned()], ..Lora::default() };
    let merged = |precision: Option<DType>| {
        let model = Sequential::new().with("q_proj", Linear::new(&device, 6, 5, &Rng::new(0)).unwrap());
        let adapters = lora(&model, &options, &Rng::new(1)).unwrap();
        for (_, parameter) in adapters.parameters() {
            let values = Tensor::normal(&device, parameter.value().dims(), 0.0, 1.0, &Rng::new(2)).unwrap();
            parameter.set(&values).unwrap();
        }
        let mixed = precision.map(mixed).transpose().unwrap();
        adapters.merge().unwrap();
        drop(mixed);
        model.forward(&Tensor::ones(&device, [1, 6]).unwrap()).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(merged(Some(DType::BF16)), merged(None));
}

#[test]
fn ranks_sum_gradients_in_f32() {
    let device = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    let buckets = |precision| {
        let model = Linear::new(&device, 8, 8, &Rng::new(0)).unwrap();
        let world = World::rehearsal(0, 2).unwrap();
        let make = |own| Sgd::new(own, 0.1);
        let mut optimizer =
            world.sharded(highwater::distributed::Shard::None, model.parameters(), make).unwrap();
        let x = Tensor::ones(&device, [2, 8]).unwrap();
        let trainer = Trainer::new(&model, &mut optimizer).world(&world).precision(precision);
        drop(trainer.train_steps(2, |_| Ok(()), |()| model.forward(&x)?.square()?.mean_all()).unwrap());
        optimizer.bucket_sizes()
    };
    assert_eq!(buckets(Some(DType::BF16)), buckets(None));
}

#[test]
fn a_scaler_of_the_caller_replaces_the_default() {
    let device = cpu();
    let (scale, model) = (4.0, Linear::new(&device, 1, 1, &Rng::new(0)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
    let trainer = Trainer::new(&model, &mut sgd)
        .precision(DType::F16)
        .scaler(LossScaler::fixed(scale).unwrap())
        .saves(Saves::to(&path));
    let x = Tensor::ones(&device, [1, 1]).unwrap();
    drop(trainer.train_steps(1, |_| Ok(()), |()| model.forward(&x)?.square()?.mean_all()).unwrap());
    assert_eq!(Checkpoint::load(&path).unwrap().scaler(), Some(&LossScaler::fixed(scale).unwrap()));
}

#[test]
fn the_loop_ends_mixed_precision_and_supports_16_bit_types_only() {
    let device = cpu();
    let model = Linear::new(&device, 1, 1, &Rng::new(0)).unwrap();
    let run = |dtype: DType| {
        let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
        let trainer = Trainer::new(&model, &mut sgd).precision(dtype);
        trainer.train_steps(1, |_| Tensor::ones(&device, [1, 1]), |x| model.forward(x)?.square()?.mean_all())
    };
    let error = run(DType::F64).unwrap_err();
    assert!(matches!(error, Error::BadArgument { op: "mixed", .. }), "{error}");
    drop(run(DType::BF16).unwrap());
    let x = Tensor::full(&device, [1, 1], 1.001).unwrap();
    assert!(x.matmul(&x).unwrap().item::<f32>().unwrap() > 1.0);
}
