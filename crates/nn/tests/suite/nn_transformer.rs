//! Attention, transformer blocks and embeddings.

use crate::ops_table::device;
use crate::walks::rng_paths;
use highwater_nn::modules::{Embedding, LayerNorm, Module, MultiHeadAttention, TransformerBlock};
use highwater_tensor::{AttentionOptions, DType, Error, Rng, Tensor, no_grad};

#[test]
fn heads_of_attention_do_not_see_each_other() {
    let device = device();
    let heads = MultiHeadAttention::new(&device, 6, 2, &Rng::new(3)).unwrap().causal();
    let x = Tensor::normal(&device, [2, 5, 6], 0.0, 1.0, &Rng::new(4)).unwrap();
    let parameters = heads.parameters();
    let of = |name: &str| parameters.iter().find(|(path, _)| path == name).unwrap().1.tensor();
    let parts = x.matmul(&of("project.weight")).unwrap().add(&of("project.bias")).unwrap();
    let options = AttentionOptions { causal: true, scale: None };
    let mixed: Vec<Tensor> = (0..2)
        .map(|head| {
            let part = |kind: usize| parts.narrow(2, kind * 6 + head * 3, 3).unwrap();
            part(0).attention(&part(1), &part(2), None, options).unwrap()
        })
        .collect();
    let joined = Tensor::concat(&[&mixed[0], &mixed[1]], 2).unwrap();
    let expected = joined.matmul(&of("output.weight")).unwrap().add(&of("output.bias")).unwrap();
    let apart = heads.forward(&x).unwrap().sub(&expected).unwrap().abs().unwrap().max_all().unwrap();
    assert!(apart.item::<f32>().unwrap() < 1e-6);
    assert!(MultiHeadAttention::new(&device, 6, 4, &Rng::new(3)).is_err());
}

#[test]
fn a_mask_hides_padding_and_nothing_else() {
    let device = device();
    for causal in [false, true] {
        let block = TransformerBlock::new(&device, 8, 2, &Rng::new(5)).unwrap();
        let block = if causal { block.causal() } else { block };
        let x = Tensor::normal(&device, [2, 6, 8], 0.0, 1.0, &Rng::new(6)).unwrap().requiring_grad().unwrap();
        let close = |a: &Tensor, b: &Tensor| {
            let apart = a.sub(b).unwrap().abs().unwrap().max_all().unwrap().item::<f32>().unwrap();
            assert!(apart < 1e-5, "{apart}");
        };
        let whole = block.forward(&x).unwrap();
        let all = Tensor::ones_of(&device, [6, 6], DType::Bool).unwrap();
        let masked = block.forward_masked(&x, &all).unwrap();
        close(&masked, &whole);
        let gradient = |y: &Tensor| {
            let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
            gradients.get(&x).unwrap().clone()
        };
        close(&gradient(&masked), &gradient(&whole));
        // The first sequence has four positions, the second six: each is as it would be alone.
        let lengths = Tensor::from_slice(&device, &[4i64, 6], [2, 1, 1, 1]).unwrap();
        let mask = Tensor::arange(&device, 0, 6).unwrap().lt(&lengths).unwrap();
        let padded = block.forward_masked(&x, &mask).unwrap();
        let alone = |n: usize, len: usize| {
            let alone = block.forward(&x.narrow(0, n, 1).unwrap().narrow(1, 0, len).unwrap()).unwrap();
            close(&padded.narrow(0, n, 1).unwrap().narrow(1, 0, len).unwrap(), &alone);
        };
        alone(0, 4);
        alone(1, 6);
    }
    let heads = MultiHeadAttention::new(&device, 8, 2, &Rng::new(0)).unwrap();
    let x = Tensor::ones(&device, [2, 5, 8]).unwrap();
    assert!(heads.forward_masked(&x, &x).is_err());
    assert!(heads.forward_masked(&x, &Tensor::ones_of(&device, [4, 5], DType::Bool).unwrap()).is_err());
    assert!(heads.forward_masked(&x.at(0).unwrap(), &x).is_err());
}

#[test]
fn attention_drops_weights_only_while_gradients_are_recorded() {
    let device = device();
    let make = || MultiHeadAttention::new(&device, 6, 2, &Rng::new(3)).unwrap().causal();
    let (plain, dropping) = (make(), make().with_dropout(0.5, &Rng::new(9)).unwrap());
    let x = Tensor::normal(&device, [2, 5, 6], 0.0, 1.0, &Rng::new(4)).unwrap();
    let values = |heads: &MultiHeadAttention| heads.forward(&x).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(no_grad(|| Ok(values(&dropping))).unwrap(), values(&plain));
    let first = values(&dropping);
    assert_ne!(first, values(&plain));
    assert_ne!(first, values(&dropping), "each pass drops others");
    assert_eq!(first, values(&make().with_dropout(0.5, &Rng::new(9)).unwrap()), "one seed gives one run");

    // With a mask as well: what is hidden stays so.
    let mask = Tensor::full(&device, [5, 5], f32::NEG_INFINITY).unwrap();
    let hidden = dropping.forward_masked(&x, &mask).unwrap().to_vec::<f32>().unwrap();
    let parameters = plain.parameters();
    let bias = parameters.iter().find(|(path, _)| path == "output.bias").unwrap().1.tensor();
    assert_eq!(hidden, bias.broadcast_to([2, 5, 6]).unwrap().to_vec::<f32>().unwrap());

    assert_eq!(rng_paths(&dropping), ["dropout.rng"]);
    assert_eq!(dropping.parameters().len(), plain.parameters().len());
    for p in [1.0, -0.5] {
        let refused = make().with_dropout(p, &Rng::new(0));
        assert!(matches!(refused, Err(Error::BadArgument { op: "dropout", argument: "p", .. })));
    }
}

/// Where attention adds nothing, what remains is x and a perceptron of its norm, with one activation inside.
#[test]
fn a_block_adds_a_perceptron_of_what_it_has_normalised() {
    let device = device();
    let block = TransformerBlock::new(&device, 8, 2, &Rng::new(5)).unwrap().causal();
    let parameters = block.parameters();
    let of = |path: &str| parameters.iter().find(|(own, _)| own == path).unwrap().1.clone();
    for path in ["attention.output.weight", "attention.output.bias"] {
        of(path).set(&Tensor::zeros(&device, of(path).tensor().dims()).unwrap()).unwrap();
    }
    let (up, down) = (of("up.bias"), of("down.bias"));
    up.set(&Tensor::normal(&device, up.tensor().dims(), 0.0, 1.0, &Rng::new(7)).unwrap()).unwrap();
    down.set(&Tensor::normal(&device, down.tensor().dims(), 0.0, 1.0, &Rng::new(8)).unwrap()).unwrap();
    let x = Tensor::normal(&device, [2, 3, 8], 0.0, 1.0, &Rng::new(6)).unwrap();
    let normalized = LayerNorm::new(&device, 8).unwrap().forward(&x).unwrap();
    let product = |x: &Tensor, name: &str| {
        let [weight, bias] = ["weight", "bias"].map(|part| of(&format!("{name}.{part}")).tensor().detach());
        x.matmul(&weight).unwrap().add(&bias).unwrap()
    };
    let inside = product(&normalized, "up").gelu_tanh().unwrap();
    let expected = x.add(&product(&inside, "down")).unwrap();
    let apart = block.forward(&x).unwrap().sub(&expected).unwrap().abs().unwrap().max_all().unwrap();
    assert!(apart.item::<f32>().unwrap() < 1e-5);
}

#[test]
fn a_causal_block_does_not_look_ahead() {
    let device = device();
    let block = TransformerBlock::new(&device, 8, 2, &Rng::new(5)).unwrap().causal();
    let x = Tensor::normal(&device, [1, 6, 8], 0.0, 1.0, &Rng::new(6)).unwrap();
    let whole = block.forward(&x).unwrap().narrow(1, 0, 4).unwrap().to_vec::<f32>().unwrap();
    let begun = block.forward(&x.narrow(1, 0, 4).unwrap()).unwrap().to_vec::<f32>().unwrap();
    for (a, b) in whole.iter().zip(&begun) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
    let paths: Vec<String> = block.parameters().into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        paths[..4],
        ["norm1.weight", "norm1.bias", "attention.project.weight", "attention.project.bias"]
    );
    assert_eq!(paths.len(), 12);
}

#[test]
fn a_block_drops_what_it_adds_only_while_gradients_are_recorded() {
    let device = device();
    let make = || TransformerBlock::new(&device, 6, 2, &Rng::new(3)).unwrap().causal();
    let (plain, dropping) = (make(), make().with_dropout(0.5, &Rng::new(9)).unwrap());
    let x = Tensor::normal(&device, [2, 5, 6], 0.0, 1.0, &Rng::new(4)).unwrap();
    let values = |block: &TransformerBlock| block.forward(&x).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(no_grad(|| Ok(values(&dropping))).unwrap(), values(&plain));
    let first = values(&dropping);
    assert_ne!(first, values(&dropping), "each pass drops others");
    assert_eq!(first, values(&make().with_dropout(0.5, &Rng::new(9)).unwrap()), "one seed gives one run");
    // Where neither adds anything, a quarter of all places, x is as it was.
    let kept =
        first.iter().zip(x.to_vec::<f32>().unwrap()).filter(|(after, before)| *after == before).count();
    assert!((5..30).contains(&kept), "{kept} of 60");
    assert_eq!(rng_paths(&dropping), ["dropout.rng"]);
    for refused in [make().with_dropout(1.5, &Rng::new(0)), make().with_attention_dropout(1.5, &Rng::new(0))]
    {
        let message = refused.unwrap_err().to_string();
        assert_eq!(message, "dropout: p must be at least 0 and below 1, got 1.5");
    }
}

#[test]
fn rows_of_an_embedding_that_are_used_twice_learn_twice() {
    let device = device();
    let table = Embedding::new(&device, 4, 2, &Rng::new(7)).unwrap();
    let tokens = Tensor::from_slice(&device, &[1i64, 3, 1], [3]).unwrap();
    let gradients = table.forward(&tokens).unwrap().sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(&table.weight().tensor()).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(gradient, [0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn a_padding_row_is_zero_and_learns_nothing() {
    let device = device();
    let table = Embedding::new(&device, 3, 2, &Rng::new(7)).unwrap();
    let before = table.weight().value().to_vec::<f32>().unwrap();
    let table = table.with_padding_idx(1).unwrap();
    let values = || table.weight().value().to_vec::<f32>().unwrap();
    assert_eq!(values(), [before[0], before[1], 0.0, 0.0, before[4], before[5]]);
    let tokens = Tensor::from_slice(&device, &[1i64, 2, 1, 0, 2], [5]).unwrap();
    let gradient = || {
        let loss = table.forward(&tokens).unwrap().sum_all().unwrap();
        loss.backward().unwrap().get(&table.weight().tensor()).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(gradient(), [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]);

    // As in PyTorch, loaded values stay, and a gradient that does not come from the layer counts.
    let loaded = Tensor::full(&device, [3, 2], f32::INFINITY).unwrap();
    table.weight().set(&loaded).unwrap();
    assert_eq!(table.forward(&tokens).unwrap().to_vec::<f32>().unwrap(), [f32::INFINITY; 10]);
    assert_eq!(gradient(), [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]);

    table.freeze();
    assert!(!table.forward(&tokens).unwrap().requires_grad());
    let refused = table.with_padding_idx(3).unwrap_err().to_string();
    assert_eq!(refused, "embedding: index 3 is out of range for length 3");
}

#[test]
fn a_block_drops_weights_of_its_attention_in_training_alone() {
    let device = device();
    let block = |p: f64| {
        let block = TransformerBlock::new(&device, 4, 2, &Rng::new(0)).unwrap();
        block.with_attention_dropout(p, &Rng::new(5)).unwrap()
    };
    let x = Tensor::normal(&device, [1, 6, 4], 0.0, 1.0, &Rng::new(2)).unwrap();
    let values = |block: &TransformerBlock| block.forward(&x).unwrap().to_vec::<f32>().unwrap();
    let (some, none) = (block(0.5), block(0.0));
    assert_ne!(values(&some), values(&none));
    assert_eq!(no_grad(|| Ok(values(&some))).unwrap(), values(&none));
    assert_eq!(rng_paths(&some), ["attention.dropout.rng"]);
}
