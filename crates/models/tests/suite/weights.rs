//! Weights from files: comparison with the model, tied layers, GGUF.

use std::collections::BTreeMap;

use highwater::io::{Array, Arrays, Gguf, GgufLimits, GgufValue, write_gguf_to};
use highwater::nn::Module;
use highwater::{DType, Rng, Tensor, no_grad};
use highwater_models::{Llama, LlamaConfig, ModelError};

use crate::support::{LLAMA, Written, arrays, assert_close, cpu, llama_config, scramble, tokens};

#[test]
fn a_file_gives_the_model_that_wrote_it() {
    let device = cpu();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    scramble(&model);
    let text = tokens(&device, [1, 9], 40);
    let expected = no_grad(|| model.forward(&text)).unwrap();
    let mut contents = arrays(&model);
    // Files may contain the tied output layer, and the frequencies.
    contents.insert("lm_head.weight".to_owned(), contents["model.embed_tokens.weight"].clone());
    let frequencies = Array::from_slice(&[1.0f32, 0.1], [2]).unwrap();
    contents.insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), frequencies);
    let file = Written::safetensors(contents.clone());
    let read = Llama::from_weights(&llama_config(), &file.open(), &device).unwrap();
    assert_close(&no_grad(|| read.forward(&text)).unwrap(), &expected, 0.0);

    // Without the prefix, as a model without an output layer is saved.
    let short = contents.into_iter().map(|(name, array)| match name.strip_prefix("model.") {
        Some(short) => (short.to_owned(), array),
        None => (name, array),
    });
    let file = Written::safetensors(short.collect());
    let read = Llama::from_weights(&llama_config(), &file.open(), &device).unwrap();
    assert_close(&no_grad(|| read.forward(&text)).unwrap(), &expected, 0.0);

    // An untied model reads its own output layer.
    let untied = LlamaConfig::from_json(&LLAMA.replace("true", "false")).unwrap();
    let model = Llama::new(&untied, &device, &Rng::new(1)).unwrap();
    let file = Written::safetensors(arrays(&model));
    let read = Llama::from_weights(&untied, &file.open(), &device).unwrap();
    let [a, b] = [&model, &read].map(|model| no_grad(|| model.forward(&text)).unwrap());
    assert_close(&a, &b, 0.0);
}

#[test]
fn all_differences_are_listed_and_nothing_is_loaded() {
    let device = cpu();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    let mut contents = arrays(&model);
    for layer in 0..2 {
        contents.remove(&format!("model.layers.{layer}.mlp.up_proj.weight"));
    }
    contents.insert("model.norm.weight".to_owned(), Array::from_slice(&[1.0f32; 3], [3]).unwrap());
    contents.insert("model.layers.7.extra".to_owned(), Array::from_slice(&[1.0f32], [1]).unwrap());
    let file = Written::safetensors(contents);
    let in_use = || device.default_allocator().unwrap().stats().bytes_in_use;
    let before = in_use();
    let error = Llama::from_weights(&llama_config(), &file.open(), &device).unwrap_err();
    assert_eq!(in_use(), before);
    let (_, text) = error.to_string().split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(
        text,
        "the tensors do not match the model; 2 missing: model.layers.0.mlp.up_proj.weight [36, 24], \
         model.layers.1.mlp.up_proj.weight [36, 24]; 1 of another shape: model.norm.weight [24] is [3] in the file; \
         1 unexpected: model.layers.7.extra"
    );
    let ModelError::Tensors(mismatch) = error else { panic!("{error}") };
    assert_eq!((mismatch.missing.len(), mismatch.unexpected.len()), (2, 1));
}

/// The tensors under the names of GGUF files, with the rows of queries and keys in the order of interleaved pairs.
fn gguf_tensors(model: &Llama) -> Arrays {
    let names = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("model.layers", "blk"),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
    ];
    let mut tensors = Arrays::new();
    for (name, parameter) in model.parameters() {
        let value = parameter.value();
        let value = if name.contains("q_proj") || name.contains("k_proj") {
            let rows = value.dims()[0];
            // convert_hf_to_gguf.py: reshape(heads, 2, rows // heads // 2, ..).swapaxes(1, 2)
            let halves = value.reshape([rows / 4, 2, 2, 24]).unwrap();
            halves.transpose(1, 2).unwrap().contiguous().unwrap().reshape([rows, 24]).unwrap()
        } else {
            value
        };
        let name = names.iter().fold(name, |name, (own, gguf)| name.replace(own, gguf));
        tensors.insert(name, Array::of(&value).unwrap());
    }
    tensors
}

fn gguf_metadata() -> BTreeMap<String, GgufValue> {
    let text = |text: &str| GgufValue::String(text.to_owned());
    let llama = [
        ("block_count", GgufValue::U32(2)),
        ("embedding_length", GgufValue::U32(24)),
        ("feed_forward_length", GgufValue::U32(36)),
        ("attention.head_count", GgufValue::U32(6)),
        ("attention.head_count_kv", GgufValue::U32(2)),
        ("context_length", GgufValue::U32(100)),
        ("rope.dimension_count", GgufValue::U32(4)),
        ("rope.freq_base", GgufValue::F32(100.0)),
        ("attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5)),
    ];
    let mut metadata: BTreeMap<_, _> =
        llama.into_iter().map(|(key, value)| (format!("llama.{key}"), value)).collect();
    metadata.insert("general.architecture".to_owned(), text("llama"));
    metadata.insert("tokenizer.ggml.eos_token_id".to_owned(), GgufValue::U32(2));
    metadata
}

fn open_gguf(metadata: &BTreeMap<String, GgufValue>, tensors: &Arrays) -> (Written, Gguf) {
    let file = Written::named("model.gguf");
    write_gguf_to(std::fs::File::create(&file.path).unwrap(), metadata, tensors).unwrap();
    let opened = Gguf::open(&file.path, &GgufLimits::default()).unwrap();
    (file, opened)
}

#[test]
fn a_gguf_file_gives_the_model_of_its_original() {
    let device = cpu();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    scramble(&model);
    let tensors = gguf_tensors(&model);
    assert!(tensors.contains_key("blk.1.attn_k.weight") && tensors.contains_key("token_embd.weight"));
    let (_folder, file) = open_gguf(&gguf_metadata(), &tensors);
    let read = Llama::from_gguf(&file, &device).unwrap();
    let config = read.config();
    assert_eq!((config.vocabulary, config.tied, config.stop_tokens.clone()), (40, true, vec![2]));
    assert!((config.epsilon - 1e-5).abs() < 1e-10);
    for ((name, own), (other, read)) in model.parameters().iter().zip(read.parameters()) {
        assert_eq!(name, &other);
        assert_close(&read.value(), &own.value(), 0.0);
    }
    let text = tokens(&device, [1, 9], 40);
    let [a, b] = [&model, &read].map(|model| no_grad(|| model.forward(&text)).unwrap());
    assert_close(&a, &b, 1e-5);
}

#[test]
fn gguf_files_of_other_models_are_refused() {
    let device = cpu();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    let tensors = gguf_tensors(&model);
    let error = |change: &dyn Fn(&mut BTreeMap<String, GgufValue>, &mut Arrays)| {
        let (mut metadata, mut tensors) = (gguf_metadata(), tensors.clone());
        change(&mut metadata, &mut tensors);
        let (_folder, file) = open_gguf(&metadata, &tensors);
        Llama::from_gguf(&file, &device).unwrap_err()
    };
    let other = error(&|metadata, _| {
        metadata.insert("general.architecture".to_owned(), GgufValue::String("gemma".to_owned()));
    });
    assert_eq!(other.to_string(), "unknown architecture gemma; supported are llama");
    let missing = error(&|metadata, _| {
        metadata.remove("llama.block_count");
    });
    assert_eq!(missing.to_string(), "the configuration has no field `llama.block_count`");
    let scaled = error(&|metadata, _| {
        metadata.insert("llama.rope.scaling.type".to_owned(), GgufValue::String("yarn".to_owned()));
    });
    assert!(matches!(scaled, ModelError::Unsupported { .. }), "{scaled}");
    let lacking = error(&|_, tensors| {
        tensors.remove("blk.0.ffn_up.weight");
    });
    let ModelError::Tensors(mismatch) = lacking else { panic!("{lacking}") };
    assert_eq!(mismatch.missing[0].to_string(), "model.layers.0.mlp.up_proj.weight [36, 24]");
}

#[test]
fn divisors_of_frequencies_are_read_from_gguf() {
    let device = cpu();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    let mut tensors = gguf_tensors(&model);
    tensors.insert("rope_freqs.weight".to_owned(), Array::from_slice(&[1.0f32, 8.0], [2]).unwrap());
    let (_folder, file) = open_gguf(&gguf_metadata(), &tensors);
    let read = Llama::from_gguf(&file, &device).unwrap();
    assert_eq!(read.config().frequency_divisors, Some(vec![1.0, 8.0]));
    // Only the second frequency differs, so the first positions do.
    let text = tokens(&device, [1, 9], 40);
    let [a, b] = [&model, &read].map(|model| no_grad(|| model.forward(&text)).unwrap());
    let apart = a.sub(&b).unwrap().abs().unwrap().max_all().unwrap().to_dtype(DType::F64).unwrap();
    let apart: Tensor = apart;
    assert!(apart.item::<f64>().unwrap() > 0.0);
}
