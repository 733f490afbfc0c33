//! Llama: generation with a cache, names, memory, and values against plain loops.

use highwater::alloc::Category;
use highwater::nn::Module;
use highwater::{Device, Error, Rng, Runtime, Tensor, no_grad};
use highwater_models::{LanguageModel, Llama, LlamaConfig};

use crate::support::{assert_close, cpu, llama_config, scramble, tokens, values};

fn llama(device: &Device) -> Llama {
    let model = Llama::new(&llama_config(), device, &Rng::new(1)).unwrap();
    scramble(&model);
    model
}

#[test]
fn steps_with_a_cache_equal_the_whole_text() {
    let device = cpu();
    let model = llama(&device);
    let text = tokens(&device, [2, 90], 40);
    let whole = no_grad(|| model.forward(&text)).unwrap();
    let mut cache = model.new_cache(2, 90).unwrap();
    let mut at = 0;
    for new in [70, 1, 1, 1, 3, 14] {
        let part = text.narrow(1, at, new).unwrap();
        let logits = no_grad(|| model.forward_cached(&part, &mut cache)).unwrap();
        assert_close(&logits, &whole.narrow(1, at, new).unwrap(), 2e-5);
        at += new;
        assert_eq!(cache.len(), at);
    }
    // Another text after the same beginning.
    cache.truncate(70);
    let again = no_grad(|| model.forward_cached(&text.narrow(1, 70, 2)?, &mut cache)).unwrap();
    assert_close(&again, &whole.narrow(1, 70, 2).unwrap(), 2e-5);
}

#[test]
fn parameters_have_the_names_of_hugging_face() {
    let device = cpu();
    let untied = LlamaConfig::from_json(&crate::support::LLAMA.replace("true", "false")).unwrap();
    let model = Llama::new(&untied, &device, &Rng::new(1)).unwrap();
    let mut expected = vec![("model.embed_tokens.weight".to_owned(), vec![40, 24])];
    for layer in 0..2 {
        let parts: [(&str, &[usize]); 9] = [
            ("self_attn.q_proj", &[24, 24]),
            ("self_attn.k_proj", &[8, 24]),
            ("self_attn.v_proj", &[8, 24]),
            ("self_attn.o_proj", &[24, 24]),
            ("mlp.gate_proj", &[36, 24]),
            ("mlp.up_proj", &[36, 24]),
            ("mlp.down_proj", &[24, 36]),
            ("input_layernorm", &[24]),
            ("post_attention_layernorm", &[24]),
        ];
        let named =
            parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape.to_vec()));
        expected.extend(named);
    }
    expected.push(("model.norm.weight".to_owned(), vec![24]));
    expected.push(("lm_head.weight".to_owned(), vec![40, 24]));
    let found: Vec<_> = model
        .parameters()
        .into_iter()
        .map(|(name, parameter)| (name, parameter.value().dims().to_vec()))
        .collect();
    assert_eq!(found, expected);
    let listed = untied.tensors(&device).unwrap();
    let listed: Vec<_> =
        listed.into_iter().map(|tensor| (tensor.name, tensor.shape.dims().to_vec())).collect();
    assert_eq!(listed, expected);
}

/// The logits of the last token, in plain loops of f64 over the definition of Llama.
fn plain_logits(model: &Llama, text: &[usize]) -> Vec<f64> {
    let parameters: std::collections::HashMap<String, Vec<f64>> =
        model.parameters().into_iter().map(|(name, parameter)| (name, values(&parameter.value()))).collect();
    let LlamaConfig { width, heads, key_heads, head_width, theta, epsilon, .. } = *model.config();
    let norm = |x: &[f64], name: &str| -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + epsilon).sqrt();
        x.iter().zip(&parameters[&format!("{name}.weight")]).map(|(x, w)| x * scale * w).collect()
    };
    let linear = |x: &[f64], name: &str| -> Vec<f64> {
        let weight = &parameters[&format!("{name}.weight")];
        weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    let rotated = |x: &[f64], position: usize| -> Vec<f64> {
        let half = head_width / 2;
        let mut out = x.to_vec();
        for head in 0..x.len() / head_width {
            for i in 0..half {
                let angle = position as f64 * theta.powf(-2.0 * i as f64 / head_width as f64);
                let (a, b) = (head * head_width + i, head * head_width + i + half);
                out[a] = x[a] * angle.cos() - x[b] * angle.sin();
                out[b] = x[b] * angle.cos() + x[a] * angle.sin();
            }
        }
        out
    };
    let embedding = &parameters["model.embed_tokens.weight"];
    let mut rows: Vec<Vec<f64>> =
        text.iter().map(|&token| embedding[token * width..][..width].to_vec()).collect();
    for layer in 0..model.config().layers {
        let path = |part: &str| format!("model.layers.{layer}.{part}");
        let normed: Vec<_> = rows.iter().map(|x| norm(x, &path("input_layernorm"))).collect();
        let project = |part: &str| -> Vec<Vec<f64>> {
            normed.iter().map(|x| linear(x, &path(&format!("self_attn.{part}")))).collect()
        };
        let turn = |rows: Vec<Vec<f64>>| -> Vec<Vec<f64>> {
            rows.iter().enumerate().map(|(position, x)| rotated(x, position)).collect()
        };
        let (q, k, v) = (turn(project("q_proj")), turn(project("k_proj")), project("v_proj"));
        for (i, x) in rows.iter_mut().enumerate() {
            let mut mixed = vec![0.0; heads * head_width];
            for head in 0..heads {
                let key_head = head / (heads / key_heads);
                let of = |row: &[f64], head: usize, e: usize| row[head * head_width + e];
                let score = |j: usize| -> f64 {
                    let pairs = (0..head_width).map(|e| of(&q[i], head, e) * of(&k[j], key_head, e));
                    pairs.sum::<f64>() / (head_width as f64).sqrt()
                };
                let weights: Vec<f64> = (0..=i).map(|j| score(j).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for e in 0..head_width {
                    let total: f64 =
                        weights.iter().enumerate().map(|(j, w)| w * of(&v[j], key_head, e)).sum();
                    mixed[head * head_width + e] = total / sum;
                }
            }
            let added = linear(&mixed, &path("self_attn.o_proj"));
            x.iter_mut().zip(added).for_each(|(x, added)| *x += added);
        }
        for x in &mut rows {
            let normed = norm(x, &path("post_attention_layernorm"));
            let gate = linear(&normed, &path("mlp.gate_proj"));
            let up = linear(&normed, &path("mlp.up_proj"));
            let inside: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let added = linear(&inside, &path("mlp.down_proj"));
            x.iter_mut().zip(added).for_each(|(x, added)| *x += added);
        }
    }
    let last = norm(rows.last().unwrap(), "model.norm");
    linear(&last, "model.embed_tokens")
}

#[test]
fn logits_equal_plain_loops() {
    let device = cpu();
    let model = llama(&device);
    let text = tokens(&device, [1, 12], 40);
    let ids: Vec<usize> = values(&text).into_iter().map(|token| token as usize).collect();
    let logits = values(&no_grad(|| model.forward(&text)?.at((0, 11))).unwrap());
    for (logit, expected) in logits.into_iter().zip(plain_logits(&model, &ids)) {
        assert!((logit - expected).abs() < 1e-3 * expected.abs().max(1.0), "{logit} instead of {expected}");
    }
}

#[test]
fn texts_beyond_the_context_the_cache_or_the_vocabulary_are_errors() {
    let device = cpu();
    let model = llama(&device);
    let long = model.forward(&tokens(&device, [1, 101], 40)).unwrap_err();
    let message = "llama: tokens must be at least one, within the context of the model, got 101 tokens after 0 for a context of 100";
    assert_eq!(long.root().to_string(), message);
    assert!(model.new_cache(1, 101).is_err());
    let mut cache = model.new_cache(1, 8).unwrap();
    no_grad(|| model.forward_cached(&tokens(&device, [1, 6], 40), &mut cache)).unwrap();
    let full = model.forward_cached(&tokens(&device, [1, 3], 40), &mut cache).unwrap_err();
    assert_eq!(full.root(), &Error::CacheFull { len: 6, new: 3, capacity: 8 });
    let unknown = Tensor::from_slice(&device, &[40i64], [1, 1]).unwrap();
    let unknown = no_grad(|| model.forward_cached(&unknown, &mut cache)).unwrap_err();
    assert!(matches!(unknown.root(), Error::IndexOutOfRange { index: 40, len: 40, .. }), "{unknown}");
    // Another number of sequences.
    let other = model.forward_cached(&tokens(&device, [2, 1], 40), &mut cache).unwrap_err();
    assert!(matches!(other.root(), Error::BadArgument { argument: "cache", .. }), "{other}");
    assert!(model.forward(&tokens(&device, [1, 1], 40).flatten_from(0).unwrap()).is_err());
    assert!(model.forward(&Tensor::zeros(&device, [1, 0]).unwrap()).is_err());
    // None of them has changed the cache.
    assert_eq!(cache.len(), 6);
    no_grad(|| model.forward_cached(&tokens(&device, [1, 2], 40), &mut cache)).unwrap();
}

/// Creates a model, reads a prompt and generates tokens. Returns the peak and the bytes of the cache.
fn generate(device: &Device) -> [u64; 2] {
    let model = Llama::new(&llama_config(), device, &Rng::new(1)).unwrap();
    let mut cache = model.new_cache(1, 32).unwrap();
    let step = |cache: &mut _, len: usize| {
        no_grad(|| {
            let hidden = model.hidden(&tokens(device, [1, len], 40), Some(cache))?;
            model.logits(&hidden.narrow(1, len - 1, 1)?)
        })
    };
    for len in [10, 1, 1, 1, 1] {
        step(&mut cache, len).unwrap();
    }
    let allocator = device.default_allocator().unwrap();
    [allocator.stats().peak_bytes_in_use, allocator.ledger().category(Category::Cache)]
}

#[test]
fn the_peak_of_generation_is_predicted_exactly() {
    let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    let (real, predicted) = (generate(&cpu()), generate(&dry));
    assert_eq!(real, predicted);
    assert_eq!(real[1], 4 * 2 * 32 * 4 * 4);
}

#[test]
fn a_step_allocates_nothing_for_earlier_tokens() {
    let device = cpu();
    let model = llama(&device);
    let mut cache = model.new_cache(1, 100).unwrap();
    let allocator = device.default_allocator().unwrap();
    let mut peaks = Vec::new();
    for _ in 0..90 {
        assert!(allocator.clear_stats());
        let before = allocator.stats().bytes_in_use;
        no_grad(|| model.forward_cached(&tokens(&device, [1, 1], 40), &mut cache)).unwrap();
        peaks.push(allocator.stats().peak_bytes_in_use - before);
    }
    assert!(peaks.iter().all(|&peak| peak == peaks[0]), "{peaks:?}");
}

#[test]
fn models_can_be_trained() {
    let device = cpu();
    let model = llama(&device);
    let text = tokens(&device, [2, 9], 40);
    let logits = model.forward(&text).unwrap().flatten(0, 1).unwrap();
    let loss = logits.cross_entropy(&text.flatten_from(0).unwrap()).unwrap();
    let gradients = loss.backward().unwrap();
    assert_eq!(gradients.len(), model.parameters().len());
    assert!(model.parameters().iter().all(|(_, parameter)| {
        values(gradients.get(&parameter.tensor()).unwrap()).iter().any(|&slope| slope != 0.0)
    }));
}
