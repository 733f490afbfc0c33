//! Layers of models that generate text: rotary embeddings, grouped-query attention, the key-value cache, SwiGLU.

use std::f64::consts::PI;

use crate::ops_table::device;
use bfc_core::Category;
use highwater_nn::modules::{
    Embedding, GroupedQueryAttention, KeyValueCache, KeyValueCacheOptions, Linear, Llama3Scaling, Module,
    Parameter, RotaryEmbedding, RotaryOptions, RotaryPairs, SwiGlu,
};
use highwater_tensor::{AttentionOptions, DType, Device, Error, Rng, Runtime, Tensor, no_grad};

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64) {
    assert_eq!(a.dims(), b.dims());
    for (a, b) in values(a).into_iter().zip(values(b)) {
        assert!((a - b).abs() <= tolerance, "{a} and {b}");
    }
}

fn rotary_options(pairs: RotaryPairs) -> RotaryOptions {
    RotaryOptions { pairs, theta: 100.0, dtype: DType::F64, ..RotaryOptions::default() }
}

#[test]
fn rotary_embeddings_rotate_pairs_by_their_position() {
    let device = device();
    for pairs in [RotaryPairs::HalfSplit, RotaryPairs::Interleaved] {
        let rotary = RotaryEmbedding::new(&device, 6, 40, rotary_options(pairs)).unwrap();
        let x = Tensor::uniform(&device, [2, 3, 5, 6], -1.0, 1.0, &Rng::new(1)).unwrap();
        let x = x.to_dtype(DType::F64).unwrap();
        let (before, after) = (values(&x), values(&rotary.rotate(&x, 30).unwrap()));
        for row in 0..30 {
            let position = (30 + row % 5) as f64;
            for pair in 0..3 {
                let (first, second) = match pairs {
                    RotaryPairs::HalfSplit => (pair, pair + 3),
                    RotaryPairs::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (a, b) = (before[6 * row + first], before[6 * row + second]);
                let (sin, cos) = (position * 100f64.powf(-2.0 * pair as f64 / 6.0)).sin_cos();
                assert!((after[6 * row + first] - (a * cos - b * sin)).abs() < 1e-12);
                assert!((after[6 * row + second] - (b * cos + a * sin)).abs() < 1e-12);
            }
        }
        // Rotations keep scores of equal distances: q at 7 and k at 4 as q at 17 and k at 14.
        let row = |offset: usize, seed| {
            let x = Tensor::uniform(&device, [1, 6], -1.0, 1.0, &Rng::new(seed)).unwrap();
            rotary.rotate(&x.to_dtype(DType::F64).unwrap(), offset).unwrap()
        };
        let score = |q: usize, k: usize| values(&row(q, 2).mul(&row(k, 3)).unwrap().sum_all().unwrap())[0];
        assert!((score(7, 4) - score(17, 14)).abs() < 1e-12);
    }
}

#[test]
fn the_gradient_of_a_rotation_is_the_rotation_back() {
    let device = device();
    for pairs in [RotaryPairs::HalfSplit, RotaryPairs::Interleaved] {
        let rotary = RotaryEmbedding::new(&device, 4, 9, rotary_options(pairs)).unwrap();
        let numbers = |seed| {
            let x = Tensor::uniform(&device, [2, 3, 4], -1.0, 1.0, &Rng::new(seed)).unwrap();
            x.to_dtype(DType::F64).unwrap()
        };
        let (x, upstream) = (numbers(1).requiring_grad().unwrap(), numbers(2));
        let along = |x: &Tensor| rotary.rotate(x, 6).unwrap().mul(&upstream).unwrap().sum_all().unwrap();
        let gradients = along(&x).backward().unwrap();
        // The map is linear: its derivative along an element is the difference of two values.
        let base = values(&along(&x))[0];
        for (element, gradient) in values(gradients.get(&x).unwrap()).into_iter().enumerate() {
            let mut moved = values(&x);
            moved[element] += 1.0;
            let moved = Tensor::from_slice(&device, &moved, [2, 3, 4]).unwrap();
            assert!((values(&along(&moved))[0] - base - gradient).abs() < 1e-12);
        }
    }
}

#[test]
fn llama_3_scales_long_waves_only() {
    // Llama 3.1 8B.
    let scaling = Llama3Scaling {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_positions: 8192,
    };
    let options = RotaryOptions { theta: 500_000.0, ..RotaryOptions::default() };
    let plain = options.frequencies(128);
    let scaled = RotaryOptions { scaling: Some(scaling), ..options }.frequencies(128);
    let mut counts = [0; 3];
    for (plain, scaled) in plain.into_iter().zip(scaled) {
        let wave = 2.0 * PI / plain;
        let (kind, expected) = if wave < 8192.0 / 4.0 {
            (0, plain)
        } else if wave > 8192.0 {
            (1, plain / 8.0)
        } else {
            let smooth = (8192.0 / wave - 1.0) / 3.0;
            (2, (1.0 - smooth) * plain / 8.0 + smooth * plain)
        };
        counts[kind] += 1;
        assert!((scaled - expected).abs() <= 1e-15 * plain, "{plain}: {scaled}");
    }
    assert_eq!(counts, [29, 29, 6]);
}

#[test]
fn rotary_embeddings_refuse_what_they_cannot_rotate() {
    let device = device();
    let new = |width, options| RotaryEmbedding::new(&device, width, 8, options);
    let message = |result: Result<_, Error>| result.map(|_: RotaryEmbedding| ()).unwrap_err().to_string();
    let default = RotaryOptions::default();
    assert_eq!(message(new(3, default)), "rotary_embedding: width must be even and not 0, got 3");
    for options in [
        RotaryOptions { theta: f64::NAN, ..default },
        RotaryOptions { theta: 0.0, ..default },
        RotaryOptions { dtype: DType::BF16, ..default },
    ] {
        assert!(new(4, options).is_err());
    }
    let rotary = new(4, default).unwrap();
    let x = Tensor::zeros(&device, [5, 4]).unwrap();
    assert_eq!(
        rotary.rotate(&x, 4).unwrap_err().to_string(),
        "rotary_embedding: x must be within the positions, got 5 positions from 4 on of 8"
    );
    assert!(rotary.rotate(&x, usize::MAX).is_err());
    assert!(rotary.rotate(&Tensor::zeros(&device, [5, 6]).unwrap(), 0).is_err());
    let half = x.to_dtype(DType::BF16).unwrap();
    assert_eq!(rotary.rotate(&half, 3).unwrap().dtype(), DType::BF16);
}

const SIZES: KeyValueCacheOptions =
    KeyValueCacheOptions { layers: 2, batch: 3, heads: 2, capacity: 10, width: 4, dtype: DType::F32 };

#[test]
fn a_cache_writes_in_place_and_has_a_category() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let device = runtime.cpu().unwrap();
    let ledger = || device.default_allocator().unwrap().ledger().category(Category::Cache);
    let mut cache = KeyValueCache::new(&device, SIZES).unwrap();
    assert_eq!(SIZES.bytes(), Some(2 * 2 * 3 * 2 * 10 * 4 * 4));
    // The pool rounds each of the four buffers up.
    assert_eq!(ledger(), 4 * 1024);
    let rng = Rng::new(5);
    let mut whole: [Vec<Tensor>; 2] = Default::default();
    for new in [3, 1, 2] {
        let [keys, values_of] = [(); 2].map(|()| Tensor::randn(&device, [3, 2, new, 4], &rng).unwrap());
        whole[0].push(keys.clone());
        whole[1].push(values_of.clone());
        let before = device.default_allocator().unwrap().stats();
        for layer in 0..2 {
            let views = cache.append(layer, &keys, &values_of).unwrap();
            for (view, parts) in views.iter().zip(&whole) {
                let parts: Vec<&Tensor> = parts.iter().collect();
                assert_close(view, &Tensor::concat(&parts, 2).unwrap(), 0.0);
            }
        }
        cache.advance(new).unwrap();
        assert_eq!(device.default_allocator().unwrap().stats().bytes_in_use, before.bytes_in_use);
    }
    assert_eq!((cache.len(), cache.remaining(), ledger()), (6, 4, 4 * 1024));
    // Positions after a truncation are written again.
    cache.truncate(2);
    let ones = Tensor::ones(&device, [3, 2, 1, 4]).unwrap();
    let [keys, _] = cache.append(0, &ones, &ones).unwrap();
    let expected = Tensor::concat(&[&whole[0][0].narrow(2, 0, 2).unwrap(), &ones], 2).unwrap();
    assert_close(&keys, &expected, 0.0);
    drop((keys, cache));
    assert_eq!(ledger(), 0);
}

#[test]
fn a_full_cache_is_an_error_and_keeps_its_positions() {
    let device = device();
    let mut cache = KeyValueCache::new(&device, SIZES).unwrap();
    let rows = |new: usize| Tensor::ones(&device, [3, 2, new, 4]).unwrap();
    cache.append(0, &rows(8), &rows(8)).unwrap();
    cache.advance(8).unwrap();
    let full = cache.append(0, &rows(3), &rows(3)).unwrap_err();
    assert_eq!(full, Error::CacheFull { len: 8, new: 3, capacity: 10 });
    assert_eq!(
        full.to_string(),
        "key_value_cache: 3 new positions after 8 exceed the capacity of 10; create a larger cache, or `truncate` it"
    );
    assert!(
        cache.advance(usize::MAX).is_err() && cache.check_room(3).is_err() && cache.check_room(2).is_ok()
    );
    assert!(matches!(cache.append(2, &rows(1), &rows(1)), Err(Error::BadArgument { argument: "layer", .. })));
    let other = Tensor::ones(&device, [3, 1, 1, 4]).unwrap();
    assert!(matches!(cache.append(0, &rows(1), &other), Err(Error::ShapeMismatch { .. })));
    let wide = rows(1).to_dtype(DType::F64).unwrap();
    assert!(matches!(cache.append(0, &wide, &rows(1)), Err(Error::DTypeMismatch { .. })));
    // A view from before keeps the buffer immutable.
    let views = cache.append(0, &rows(1), &rows(1)).unwrap();
    assert!(matches!(cache.append(0, &rows(1), &rows(1)), Err(Error::BadArgument { .. })));
    drop(views);
    cache.append(0, &rows(1), &rows(1)).unwrap();
    assert_eq!(cache.len(), 8);
    let huge = KeyValueCacheOptions { capacity: usize::MAX / 8, ..SIZES };
    assert!(KeyValueCache::new(&device, huge).is_err() && huge.bytes().is_none());
    assert!(KeyValueCache::new(&device, KeyValueCacheOptions { dtype: DType::I64, ..SIZES }).is_err());
}

/// A layer with eight heads of queries that share two heads of keys.
fn grouped(device: &Device) -> GroupedQueryAttention {
    let rotary = RotaryEmbedding::new(device, 4, 100, RotaryOptions::default()).unwrap();
    GroupedQueryAttention::new(device, 24, [8, 2, 4], &Rng::new(6)).unwrap().with_rotary(rotary)
}

#[test]
fn grouped_heads_equal_repeated_heads() {
    let device = device();
    let layer = grouped(&device);
    let x = Tensor::randn(&device, [2, 70, 24], &Rng::new(7)).unwrap().mul_scalar(20.0).unwrap();
    let parameters = layer.parameters();
    let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"]);
    let [q, k, v, o] = [0, 1, 2, 3].map(|at| parameters[at].1.tensor());
    let rotary = RotaryEmbedding::new(&device, 4, 100, RotaryOptions::default()).unwrap();
    let by_head = |weight: &Tensor, heads: usize| {
        let rows = x.matmul(weight).unwrap().reshape([2, 70, heads, 4]).unwrap();
        rows.permute([0, 2, 1, 3]).unwrap()
    };
    let query = rotary.rotate(&by_head(&q, 8), 0).unwrap();
    let key = rotary.rotate(&by_head(&k, 2), 0).unwrap().repeat_interleave(1, 4).unwrap();
    let value = by_head(&v, 2).repeat_interleave(1, 4).unwrap();
    let causal = AttentionOptions { causal: true, scale: None };
    let mixed = query.attention(&key, &value, None, causal).unwrap().permute([0, 2, 1, 3]).unwrap();
    let expected = mixed.reshape([2, 70, 32]).unwrap().matmul(&o).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &expected, 1e-6);
    assert!(GroupedQueryAttention::new(&device, 24, [8, 3, 4], &Rng::new(6)).is_err());
    assert!(GroupedQueryAttention::new(&device, 24, [8, 0, 4], &Rng::new(6)).is_err());
}

#[test]
fn attention_with_a_cache_equals_attention_without() {
    let device = device();
    let layer = grouped(&device);
    let x = Tensor::randn(&device, [3, 80, 24], &Rng::new(8)).unwrap().mul_scalar(20.0).unwrap();
    let whole = no_grad(|| layer.forward(&x)).unwrap();
    let sizes = KeyValueCacheOptions { layers: 1, capacity: 80, ..SIZES };
    let mut cache = KeyValueCache::new(&device, sizes).unwrap();
    let mut at = 0;
    for new in [67, 1, 1, 3, 8] {
        let part = no_grad(|| layer.forward_cached(&x.narrow(1, at, new)?, &mut cache, 0)).unwrap();
        assert_close(&part, &whole.narrow(1, at, new).unwrap(), 1e-5);
        cache.advance(new).unwrap();
        at += new;
    }
    let full = no_grad(|| layer.forward_cached(&x.narrow(1, 0, 1)?, &mut cache, 0)).unwrap_err();
    assert!(matches!(full.root(), Error::CacheFull { .. }), "{full}");
}

#[test]
fn swiglu_is_a_product_with_a_gate() {
    let device = device();
    let layer = SwiGlu::new(&device, 3, 5, &Rng::new(9)).unwrap();
    let x = Tensor::randn(&device, [2, 3], &Rng::new(10)).unwrap();
    let parameters = layer.parameters();
    let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]);
    let [gate, up, down] = [0, 1, 2].map(|at| parameters[at].1.tensor());
    let inside = x.matmul(&gate).unwrap().silu().unwrap().mul(&x.matmul(&up).unwrap()).unwrap();
    assert_close(&layer.forward(&x).unwrap(), &inside.matmul(&down).unwrap(), 1e-7);
}

#[test]
fn a_linear_layer_of_pytorch_s_shape_computes_the_same() {
    let device = device();
    let (weight, bias) = (
        Tensor::randn(&device, [3, 4], &Rng::new(11)).unwrap(),
        Tensor::randn(&device, [4], &Rng::new(12)).unwrap(),
    );
    let parameter = |tensor: &Tensor| Parameter::new(tensor.contiguous().unwrap()).unwrap();
    let own = Linear::from_parameters(parameter(&weight), Some(parameter(&bias))).unwrap();
    let turned = parameter(&weight.t().unwrap());
    let theirs = Linear::from_pytorch_parameters(turned, Some(parameter(&bias))).unwrap();
    let x = Tensor::randn(&device, [2, 5, 3], &Rng::new(13)).unwrap();
    let outcome = |layer: &Linear| {
        let y = layer.forward(&x).unwrap();
        let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
        let of = gradients.get(&layer.weight().tensor()).unwrap().clone();
        (y, of)
    };
    let ((y, of_weight), (turned_y, of_turned)) = (outcome(&own), outcome(&theirs));
    assert_close(&y, &turned_y, 1e-6);
    assert_close(&of_weight, &of_turned.t().unwrap(), 1e-5);
    assert_eq!(format!("{theirs:?}"), "Linear(3 -> 4)");
    assert_eq!((own.pytorch_transposes(), theirs.pytorch_transposes()), (&["weight"][..], &[][..]));
    assert!(Linear::from_pytorch_parameters(parameter(&weight), Some(parameter(&bias))).is_err());
}

#[test]
fn tied_embeddings_share_a_parameter() {
    let device = device();
    let table = Embedding::new(&device, 7, 3, &Rng::new(14)).unwrap();
    let tokens = Tensor::from_slice(&device, &[2i64, 6], [1, 2]).unwrap();
    let logits = table.logits(&table.forward(&tokens).unwrap()).unwrap();
    let rows = table.weight().tensor();
    let expected = rows.index_select(0, &tokens.flatten_from(0).unwrap()).unwrap();
    let expected = expected.matmul(&rows.t().unwrap()).unwrap();
    assert_close(&logits.squeeze(0).unwrap(), &expected, 1e-7);
    assert!(
        Embedding::from_parameter(Parameter::new(Tensor::zeros(&device, [3]).unwrap()).unwrap()).is_err()
    );
    // Both uses add to one gradient.
    let gradients = logits.sum_all().unwrap().backward().unwrap();
    assert_eq!((gradients.len(), table.parameters().len()), (1, 1));
}
