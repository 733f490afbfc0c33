//! Networks in use that have gradients, and networks in training that have none.

use crate::ops_table::device;
use highwater_nn::modules::{
    BatchNorm, Dropout, Gru, Linear, Lstm, Module, MultiHeadAttention, RecurrentOptions, Sequential,
    TransformerBlock,
};
use highwater_tensor::{
    Device, Result, Rng, Tensor, checkpoint, evaluating, evaluating_guard, is_recording, is_training,
    no_grad, no_grad_guard, training, training_guard,
};

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn input(device: &Device, shape: &[usize]) -> Tensor {
    Tensor::normal(device, shape, 0.0, 1.0, &Rng::new(9)).unwrap().requiring_grad().unwrap()
}

/// The gradient at x of a sum of all results, each times a factor of its own.
fn gradient(x: &Tensor, y: &Tensor) -> Vec<f32> {
    let factors = Tensor::uniform(y.device(), y.dims(), 0.5, 1.5, &Rng::new(4)).unwrap();
    let gradients = y.mul(&factors).unwrap().sum_all().unwrap().backward().unwrap();
    values(gradients.get(x).unwrap())
}

fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{found} instead of {expected}");
    }
}

#[test]
fn dropout_in_evaluation_is_the_identity() {
    let (device, rng) = (device(), Rng::new(1));
    let dropout = Dropout::new(0.5, &rng.fork(0)).unwrap();
    let drawn = || dropout.rngs().into_iter().map(|(_, rng)| rng.state()).collect::<Vec<_>>();
    let (x, before) = (input(&device, &[4, 5]), drawn());
    let y = evaluating(|| dropout.forward(&x)).unwrap();
    assert_eq!((values(&y), gradient(&x, &y)), (values(&x), gradient(&x, &x.mul_scalar(1.0).unwrap())));
    assert_eq!(drawn(), before);
}

#[test]
fn batch_norm_in_evaluation_is_a_fixed_affine_map() {
    let device = device();
    let norm = BatchNorm::new(&device, 2).unwrap();
    let parameters = norm.parameters();
    parameters[0].1.set(&Tensor::from_slice(&device, &[2.0f32, -3.0], [2]).unwrap()).unwrap();
    norm.forward(&Tensor::from_slice(&device, &[1.0f32, 10.0, 3.0, 30.0], [2, 2]).unwrap()).unwrap();
    let running = || norm.running().map(|tensor| values(&tensor));
    let before = running();
    assert_near(&before.concat(), &[0.2, 2.0, 1.1, 20.9]);

    // A single row has no variance: in training it is refused.
    let x = Tensor::from_slice(&device, &[5.0f32, 7.0], [1, 2]).unwrap().requiring_grad().unwrap();
    assert!(norm.forward(&x).is_err());
    let y = evaluating(|| norm.forward(&x)).unwrap();
    let gradients = y.sum_all().unwrap().backward().unwrap();
    let deviations = [1.1f32, 20.9].map(|variance| (variance + 1e-5).sqrt());
    let normed = [(5.0 - 0.2) / deviations[0], (7.0 - 2.0) / deviations[1]];
    assert_near(&values(&y), &[2.0 * normed[0], -3.0 * normed[1]]);
    assert_near(&values(gradients.get(&x).unwrap()), &[2.0 / deviations[0], -3.0 / deviations[1]]);
    assert_near(&values(gradients.get(&parameters[0].1.tensor()).unwrap()), &normed);
    assert_near(&values(gradients.get(&parameters[1].1.tensor()).unwrap()), &[1.0, 1.0]);
    assert_eq!(running(), before);
}

/// A module with dropout in use, beside the same without: the same values and gradients, and others in training.
fn obeys(device: &Device, shape: &[usize], with_dropout: impl Fn(f64) -> Box<dyn Module>) {
    let [dropping, plain] = [0.5, 0.0].map(&with_dropout);
    let x = input(device, shape);
    let y = evaluating(|| dropping.forward(&x)).unwrap();
    let expected = plain.forward(&x).unwrap();
    assert_near(&values(&y), &values(&expected));
    assert_near(&gradient(&x, &y), &gradient(&x, &expected));
    assert_eq!(values(&y), values(&no_grad(|| dropping.forward(&x)).unwrap()));
    assert_ne!(values(&y), values(&dropping.forward(&x).unwrap()), "this module drops nothing in training");
}

#[test]
fn attention_obeys() {
    let device = device();
    obeys(&device, &[2, 5, 8], |p| {
        let heads = MultiHeadAttention::new(&device, 8, 2, &Rng::new(0)).unwrap().causal();
        Box::new(heads.with_dropout(p, &Rng::new(1)).unwrap())
    });
}

#[test]
fn transformer_blocks_obey() {
    let device = device();
    obeys(&device, &[2, 5, 8], |p| {
        let block = TransformerBlock::new(&device, 8, 2, &Rng::new(0)).unwrap().causal();
        Box::new(block.with_dropout(p, &Rng::new(1)).unwrap())
    });
}

#[test]
fn recurrent_layers_obey() {
    let device = device();
    let options = |dropout| RecurrentOptions { layers: 2, dropout, ..RecurrentOptions::default() };
    obeys(&device, &[2, 5, 3], |p| {
        Box::new(Gru::with_options(&device, 3, 4, options(p), &Rng::new(0)).unwrap())
    });
    obeys(&device, &[2, 5, 3], |p| {
        Box::new(Lstm::with_options(&device, 3, 4, options(p), &Rng::new(0)).unwrap())
    });
}

#[test]
fn the_innermost_scope_counts_and_ends_also_by_a_panic() {
    let state = || -> Result<(bool, bool)> { Ok((is_training(), is_recording())) };
    assert_eq!(state(), Ok((true, true)));
    evaluating(|| {
        assert_eq!(state(), Ok((false, true)));
        assert_eq!(no_grad(state), Ok((false, false)));
        assert_eq!(training(state), Ok((true, true)));
        assert_eq!(std::thread::spawn(state).join().unwrap(), Ok((true, true)), "a scope is of its thread");
        assert!(std::panic::catch_unwind(|| training::<()>(|| panic!("on purpose"))).is_err());
        assert_eq!(state(), Ok((false, true)));
        Ok(())
    })
    .unwrap();
    assert_eq!(no_grad(state), Ok((false, false)));
    assert_eq!(no_grad(|| training(state)), Ok((true, false)));
    assert_eq!(training(|| no_grad(state)), Ok((true, false)));
    assert_eq!(state(), Ok((true, true)));
}

#[test]
fn guards_restore_the_mode_at_the_end_of_their_block() {
    let state = || (is_training(), is_recording());
    {
        let _evaluating = evaluating_guard();
        assert_eq!(state(), (false, true));
        {
            let _no_grad = no_grad_guard();
            assert_eq!(state(), (false, false));
            let _training = training_guard();
            assert_eq!(state(), (true, false));
        }
        assert_eq!(state(), (false, true));
        let panics = || {
            let _no_grad = no_grad_guard();
            panic!("on purpose")
        };
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(state(), (false, true));
    }
    assert_eq!(state(), (true, true));
}

#[test]
fn running_means_are_measured_in_training_without_gradients() {
    let device = device();
    let norm = BatchNorm::new(&device, 2).unwrap();
    let x = input(&device, &[8, 2]);
    let y = no_grad(|| training(|| norm.forward(&x))).unwrap();
    assert!(!y.requires_grad());
    assert_ne!(values(&norm.running()[0]), [0.0, 0.0]);
    assert_eq!(values(&y), values(&norm.forward(&x).unwrap()));
}

#[test]
fn a_checkpoint_reruns_with_its_mode_and_running_means() {
    let (device, rng) = (device(), Rng::new(0));
    let net = || {
        Sequential::new()
            .with("fc", Linear::new(&device, 3, 2, &Rng::new(3)).unwrap())
            .with("norm", BatchNorm::new(&device, 2).unwrap())
            .with("dropout", Dropout::new(0.5, &rng.fork(0)).unwrap())
    };
    let x = input(&device, &[6, 3]);
    let plain = net();
    let expected = gradient(&x, &evaluating(|| plain.forward(&x)).unwrap());

    let inside = std::sync::Arc::new(net());
    let program = std::sync::Arc::clone(&inside);
    let y = evaluating(|| checkpoint(&x, move |x| program.forward(x))).unwrap();
    // The backward pass comes in training, after another batch has moved the running means.
    let norm = inside.buffers()[0].1.clone();
    inside.forward(&x).unwrap();
    let moved = values(&norm.tensor());
    assert_eq!(gradient(&x, &y), expected);
    assert_eq!(values(&norm.tensor()), moved);

    // And the other way round: what ran in training does so again, wherever its backward pass is.
    let program = std::sync::Arc::new(net());
    let (norm, inside) = (program.buffers()[0].1.clone(), net());
    let trained = gradient(&x, &inside.forward(&x).unwrap());
    let y = checkpoint(&x, move |x| program.forward(x)).unwrap();
    let once = values(&norm.tensor());
    assert_eq!(evaluating(|| Ok(gradient(&x, &y))).unwrap(), trained);
    assert_eq!(values(&norm.tensor()), once);
}
