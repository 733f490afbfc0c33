//! Training: the loss of the next tokens, and layers that run again in the backward pass.

use highwater::nn::Parameter;
use highwater::nn::recompute::{Recomputation, Recompute, observe};
use highwater::{Device, DeviceProfile, Error, Rng, Tensor, dry_run};
use highwater_models::{Gpt2, LanguageModel, Llama};

use crate::support::{assert_close, cpu, gpt2_config, llama_config, scramble, tokens, values};

/// Tokens, and targets that leave out a prompt and padding.
fn batch(device: &Device) -> (Tensor, Tensor) {
    let inputs = tokens(device, [2, 9], 40);
    let mut targets: Vec<i64> = inputs.to_vec::<i64>().unwrap().into_iter().skip(1).chain([3]).collect();
    for ignored in [0, 1, 2, 8, 9, 15, 16, 17] {
        targets[ignored] = -100;
    }
    (inputs, Tensor::from_slice(device, &targets, [2, 9]).unwrap())
}

fn check_loss(model: &impl LanguageModel) {
    let (inputs, targets) = batch(&model.device());
    let logits = model.forward(&inputs).unwrap().log_softmax(-1).unwrap();
    let (logits, targeted) = (values(&logits), targets.to_vec::<i64>().unwrap());
    let losses: Vec<f64> = targeted
        .iter()
        .enumerate()
        .filter(|(_, target)| **target != -100)
        .map(|(row, target)| -logits[row * 40 + *target as usize])
        .collect();
    let expected = losses.iter().sum::<f64>() / losses.len() as f64;
    let loss = model.loss(&inputs, &targets).unwrap();
    assert!((f64::from(loss.item::<f32>().unwrap()) - expected).abs() < 1e-5, "{expected}");
    let error = model.loss(&inputs, &targets.narrow(1, 0, 8).unwrap()).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { op: "loss", .. }), "{error}");
}

#[test]
fn the_loss_is_that_of_the_targets() {
    let device = cpu();
    let llama = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    let gpt2 = Gpt2::new(&gpt2_config(), &device, &Rng::new(1)).unwrap();
    scramble(&llama);
    scramble(&gpt2);
    check_loss(&llama);
    check_loss(&gpt2);
}

/// The gradients of all parameters, with the two layers of a chain recomputed or not.
fn gradients(model: &impl LanguageModel, chain: Option<&str>) -> Vec<Tensor> {
    let recompute = chain.map(|path| Recompute::new().with(path, Recomputation::of_blocks(2, [0, 1])));
    let guard = recompute.as_ref().map(Recompute::enter);
    let (inputs, targets) = batch(&model.device());
    let gradients = model.loss(&inputs, &targets).unwrap().backward().unwrap();
    assert!(guard.is_none_or(|guard| guard.unused().is_empty()));
    let of = |parameter: &Parameter| gradients.get(&parameter.tensor()).unwrap().clone();
    model.parameters().iter().map(|(_, parameter)| of(parameter)).collect()
}

#[test]
fn recomputed_layers_have_the_same_gradients() {
    let device = cpu();
    let llama = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    let gpt2 = Gpt2::new(&gpt2_config(), &device, &Rng::new(1)).unwrap();
    let pairs = [
        (gradients(&llama, None), gradients(&llama, Some("model.layers"))),
        (gradients(&gpt2, None), gradients(&gpt2, Some("transformer.h"))),
    ];
    for (plain, recomputed) in pairs {
        plain.iter().zip(&recomputed).for_each(|(plain, recomputed)| assert_close(recomputed, plain, 0.0));
    }
}

#[test]
fn the_layers_are_a_chain() {
    let observed = dry_run(DeviceProfile::this_machine(), |device| {
        let llama = Llama::new(&llama_config(), device, &Rng::new(1)).unwrap();
        let gpt2 = Gpt2::new(&gpt2_config(), device, &Rng::new(1)).unwrap();
        let (inputs, targets) = batch_of_zeros(device)?;
        let (result, of_llama) = observe(0, || llama.loss(&inputs, &targets)?.backward());
        drop(result?);
        let (result, of_gpt2) = observe(0, || gpt2.loss(&inputs, &targets)?.backward());
        drop(result?);
        Ok([of_llama, of_gpt2])
    });
    let [of_llama, of_gpt2] = observed.unwrap().result;
    for (observed, path) in [(of_llama, "model.layers"), (of_gpt2, "transformer.h")] {
        assert_eq!(observed.chains.len(), 1);
        assert_eq!((observed.chains[0].path.as_str(), observed.chains[0].blocks.len()), (path, 2));
    }
}

fn batch_of_zeros(device: &Device) -> highwater::Result<(Tensor, Tensor)> {
    let zeros = || Tensor::from_slice(device, &[0i64; 18], [2, 9]);
    Ok((zeros()?, zeros()?))
}
