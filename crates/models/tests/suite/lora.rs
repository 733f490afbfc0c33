//! LoRA on language models: which layers get adapters, and what a frozen model keeps for the backward pass.

use highwater::nn::{Lora, LoraError, Module, lora};
use highwater::optim::{AdamW, Optimizer};
use highwater::{Device, Rng, Runtime, Tensor, memory_report};
use highwater_models::{Bert, BertConfig, Gpt2, Llama, LlamaConfig};

use crate::support::{BERT, LLAMA, assert_close, cpu, gpt2_config, llama_config, scramble, tokens};

fn llama(device: &Device) -> Llama {
    let model = Llama::new(&llama_config(), device, &Rng::new(1)).unwrap();
    scramble(&model);
    model
}

fn with_targets(patterns: &[&str]) -> Lora {
    Lora { rank: 2, ..Lora::default() }.with_targets(patterns.iter().copied())
}

#[test]
fn the_default_selects_queries_and_values_and_all_linear_omits_the_output_layer() {
    let device = cpu();
    let untied = LlamaConfig::from_json(&LLAMA.replace("true", "false")).unwrap();
    let model = Llama::new(&untied, &device, &Rng::new(1)).unwrap();
    let rng = Rng::new(0);
    let adapters = lora(&model, &Lora::default(), &rng).unwrap();
    let expected = [(0, 'q'), (0, 'v'), (1, 'q'), (1, 'v')]
        .map(|(layer, part)| format!("model.layers.{layer}.self_attn.{part}_proj"));
    assert_eq!(adapters.layers().collect::<Vec<_>>(), expected);
    let names: Vec<_> = adapters.parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["A", "B"].map(|part| format!("{}.lora_{part}.weight", expected[0])));
    adapters.detach();
    let all = lora(&model, &with_targets(&["all-linear"]), &rng).unwrap();
    assert_eq!(all.layers().len(), 14);
    all.detach();
    let error = lora(&model, &with_targets(&["query"]), &rng).unwrap_err();
    let LoraError::NoMatch { layers, .. } = error else { panic!("{error}") };
    assert!(layers.contains(&"model.layers.*.mlp.down_proj".to_owned()) && layers.len() == 8, "{layers:?}");

    let gpt2 = Gpt2::new(&gpt2_config(), &device, &rng).unwrap();
    assert_eq!(lora(&gpt2, &with_targets(&["c_attn"]), &rng).unwrap().layers().len(), 2);
    let bert = Bert::new(&BertConfig::from_json(BERT).unwrap(), &device, &rng).unwrap();
    assert_eq!(lora(&bert, &with_targets(&["query", "value"]), &rng).unwrap().layers().len(), 4);
}

/// The ops whose results a forward pass keeps for the backward pass, with their bytes.
fn kept(patterns: &[&str]) -> Vec<(String, u64)> {
    let device = cpu();
    let model = llama(&device);
    let _adapters = lora(&model, &with_targets(patterns), &Rng::new(0)).unwrap();
    let logits = model.forward(&tokens(&device, [2, 30], 40)).unwrap();
    let report = memory_report(&device).unwrap();
    drop(logits);
    let kept = report.places.iter().filter(|row| row.saved_bytes > 0 && row.live_bytes > 0);
    let is_weight = |path: &str| path.ends_with(".init") || path.contains("rotary");
    kept.map(|row| (row.path(), row.saved_bytes)).filter(|(path, _)| !is_weight(path)).collect()
}

#[test]
fn a_frozen_model_keeps_nothing_below_the_first_adapter() {
    for (path, bytes) in kept(&["layers.1.mlp.down_proj"]) {
        let is_above = ["model.layers.1.mlp", "model.norm"].iter().any(|above| path.starts_with(above));
        assert!(is_above, "{path} keeps {bytes} bytes");
    }
}

#[test]
fn no_input_of_a_frozen_layer_is_kept_for_the_gradient_of_its_weight() {
    let bytes = |patterns: &[&str], path: &str| {
        let kept = kept(patterns);
        kept.iter().find(|(found, _)| found == path).map_or(0, |&(_, bytes)| bytes)
    };
    let (rows, norm) = (2 * 30 * 4, "model.layers.1.post_attention_layernorm.rms_norm");
    // The product of gate and up is the input of the down projection, and the norm's result that of gate and up.
    let product = "model.layers.1.mlp.silu_mul";
    // Blocks have a multiple of 256 bytes.
    assert_eq!(bytes(&["down_proj"], product), (rows * 36u64).next_multiple_of(256));
    assert_eq!(bytes(&["q_proj"], product), 0);
    assert!(bytes(&["up_proj"], norm) >= rows * 24);
    assert!(bytes(&["q_proj"], norm) < rows * 24);
}

#[test]
fn a_step_changes_only_the_adapters_and_its_peak_is_predicted() {
    let run = |device: &Device| {
        let model = Llama::new(&llama_config(), device, &Rng::new(1)).unwrap();
        let adapters = lora(&model, &with_targets(&["q_proj", "v_proj"]), &Rng::new(0)).unwrap();
        let mut adam = AdamW::new(adapters.parameters(), 1e-2).unwrap();
        let text = tokens(device, [2, 30], 40);
        for _ in 0..3 {
            let scores = adapters.forward(&text).unwrap().flatten(0, 1).unwrap();
            let loss = scores.cross_entropy(&text.flatten_from(0).unwrap()).unwrap();
            let gradients = loss.backward().unwrap();
            assert_eq!(gradients.len(), 8);
            adam.step(gradients).unwrap();
        }
        device.default_allocator().unwrap().stats().peak_bytes_in_use
    };
    let runtime = || Runtime::builder().threads(1).build().unwrap();
    assert_eq!(run(&runtime().cpu().unwrap()), run(&runtime().dry().unwrap()));
}

#[test]
fn merged_and_saved_adapters_give_the_logits_of_the_attached_ones() {
    let device = cpu();
    let (model, folder) = (llama(&device), tempfile::tempdir().unwrap());
    let adapters = lora(&model, &with_targets(&["all-linear"]), &Rng::new(0)).unwrap();
    scramble(&adapters);
    let text = tokens(&device, [2, 10], 40);
    let expected = model.forward(&text).unwrap();
    adapters.save(folder.path()).unwrap();
    adapters.merge().unwrap();
    assert_close(&model.forward(&text).unwrap(), &expected, 1e-4);
    let other = llama(&device);
    let loaded = highwater::nn::lora_from(&other, folder.path(), None, &Rng::new(0)).unwrap();
    let logits: Tensor = loaded.forward(&text).unwrap();
    assert_close(&logits, &expected, 0.0);
}
