//! Training under autocast: losses follow f32, and dry runs take the same memory.

use highwater::prelude::*;
use highwater::train::Trainer;
use highwater::{Error, Result, Runtime};

use crate::support::cpu;

/// A network for the classification of inputs of a shape.
type Network = (&'static str, &'static [usize], fn(&Device, &Rng) -> Result<Sequential>);

const CLASSES: usize = 4;

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
    ("GPT", &[8, 10, 16], |device, rng| {
        let net = Sequential::new()
            .with("block1", TransformerBlock::new(device, 16, 2, rng)?.causal())
            .with("block2", TransformerBlock::new(device, 16, 2, rng)?.causal());
        Ok(net.with("flatten", Flatten).with("head", Linear::new(device, 160, CLASSES, rng)?))
    }),
    ("LSTM", &[8, 10, 16], |device, rng| {
        let net = Sequential::new().with("lstm", Lstm::new(device, 16, 24, rng)?);
        Ok(net.with("flatten", Flatten).with("head", Linear::new(device, 240, CLASSES, rng)?))
    }),
];

/// Trains on one batch. Returns the losses and the peak of the pool.
fn train((_, shape, network): Network, device: &Device, dtype: Option<DType>) -> (Vec<f64>, u64) {
    let rng = Rng::new(1);
    let model = network(device, &rng).unwrap();
    let x = Tensor::normal(device, shape, 0.0, 1.0, &rng.fork(1)).unwrap();
    let targets: Vec<i64> = (0..shape[0]).map(|row| (row * 7 % CLASSES) as i64).collect();
    let targets = Tensor::from_slice(device, &targets, [shape[0]]).unwrap();
    let mut optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let mut losses = Vec::new();
    let trainer = Trainer::new(&model, &mut optimizer).autocast(dtype);
    let outcome = trainer.train_steps(
        20,
        |_| Ok(()),
        |()| {
            let loss = model.forward(&x)?.cross_entropy(&targets)?;
            if !device.is_dry() {
                losses.push(loss.item::<f32>()?.into());
            }
            Ok(loss)
        },
    );
    drop(outcome.unwrap());
    (losses, device.default_allocator().unwrap().stats().peak_bytes_in_use)
}

#[test]
fn losses_under_autocast_follow_f32() {
    for &network in NETWORKS {
        let (exact, _) = train(network, &cpu(), None);
        let (rounded, _) = train(network, &cpu(), Some(DType::BF16));
        let (name, first) = (network.0, exact[0]);
        assert!(exact[19] < 0.6 * first, "{name}: {exact:?}");
        assert_ne!(exact, rounded, "{name}");
        for (step, (exact, rounded)) in exact.iter().zip(&rounded).enumerate() {
            // 2 % of the first loss.
            assert!((exact - rounded).abs() < 0.02 * first, "{name}, step {step}: {exact} and {rounded}");
        }
    }
}

#[test]
fn dry_runs_under_autocast_have_the_peak_of_the_real_run() {
    for &network in NETWORKS {
        let (_, real) = train(network, &cpu(), Some(DType::BF16));
        let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
        assert_eq!(train(network, &dry, Some(DType::BF16)).1, real, "{}", network.0);
    }
}

#[test]
fn the_loop_ends_autocast_and_supports_bf16_only() {
    let device = cpu();
    let model = Linear::new(&device, 1, 1, &Rng::new(0)).unwrap();
    let run = |dtype: DType| {
        let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
        let trainer = Trainer::new(&model, &mut sgd).autocast(dtype);
        trainer.train_steps(1, |_| Tensor::ones(&device, [1, 1]), |x| model.forward(x)?.square()?.mean_all())
    };
    let error = run(DType::F16).unwrap_err();
    assert!(matches!(error, Error::BadArgument { op: "autocast", .. }), "{error}");
    drop(run(DType::BF16).unwrap());
    let x = Tensor::full(&device, [1, 1], 1.001).unwrap();
    assert!(x.matmul(&x).unwrap().item::<f32>().unwrap() > 1.0);
}
