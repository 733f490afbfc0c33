//! Models with quantized weights: values, memory and gradients.

use highwater::io::{Quantized, Weights};
use highwater::nn::Module;
use highwater::{BlockFormat, Device, QuantizedMatrix, Rng, Runtime, no_grad};
use highwater_models::{Llama, LlamaConfig, Sampling, Stopping, generate};

use crate::support::{Written, arrays, assert_close, cpu, scramble, tokens};

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 40, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 100,
    "tie_word_embeddings": true}"#;

fn config() -> LlamaConfig {
    LlamaConfig::from_json(CONFIG).unwrap()
}

fn written() -> Written {
    let model = Llama::new(&config(), &cpu(), &Rng::new(0)).unwrap();
    scramble(&model);
    Written::safetensors(arrays(&model))
}

/// A dense model with the values of a quantized one.
fn dequantized(file: &dyn Weights, format: BlockFormat, is_quantized: fn(&str) -> bool) -> Llama {
    let model = Llama::from_weights(&config(), file, &cpu()).unwrap();
    for (name, parameter) in model.parameters() {
        if parameter.value().rank() == 2 && is_quantized(&name) {
            let matrix = QuantizedMatrix::quantize(&parameter.value(), format).unwrap();
            parameter.set(&matrix.dequantize().unwrap()).unwrap();
        }
    }
    model
}

#[test]
fn linear_layers_are_quantized_on_load() {
    let written = written();
    let (file, device) = (written.open(), cpu());
    let text = tokens(&device, [2, 9], 40);
    for format in BlockFormat::ALL {
        let model = Llama::from_weights(&config(), &Quantized::new(&file, format), &device).unwrap();
        let names: Vec<String> = model.buffers().into_iter().map(|(name, _)| name).collect();
        assert_eq!((names.len(), &*names[0]), (2 * 7, "model.layers.0.self_attn.q_proj.weight"));
        assert_eq!(model.parameters().len(), 2 * 2 + 2);
        let expected = dequantized(&file, format, |name| !name.contains("embed"));
        let run = |model: &Llama| no_grad(|| model.forward(&text)).unwrap();
        let expected = run(&expected).to_device(&device).unwrap();
        assert_close(&run(&model), &expected, 1e-4);

        let all = Quantized::new(&file, format).with_filter(|_| true);
        let model = Llama::from_weights(&config(), &all, &device).unwrap();
        assert_eq!(model.buffers().len(), 2 * 7 + 1);
        let expected = run(&dequantized(&file, format, |_| true)).to_device(&device).unwrap();
        assert_close(&run(&model), &expected, 1e-4);
    }
}

#[test]
fn gradients_flow_through_quantized_layers() {
    let written = written();
    let (file, device) = (written.open(), cpu());
    let quantized = Quantized::new(&file, BlockFormat::Q8_0);
    let model = Llama::from_weights(&config(), &quantized, &device).unwrap();
    let expected = dequantized(&file, BlockFormat::Q8_0, |name| !name.contains("embed"));
    let gradients = |model: &Llama| {
        let text = tokens(&device, [2, 9], 40);
        let loss = model.forward(&text).unwrap().square().unwrap().mean_all().unwrap();
        let gradients = loss.backward().unwrap();
        let norms = model.parameters().into_iter().filter(|(name, _)| name.contains("norm"));
        norms.map(|(_, norm)| gradients.get(&norm.tensor()).unwrap().clone()).collect::<Vec<_>>()
    };
    let (own, expected) = (gradients(&model), gradients(&expected));
    assert_eq!(own.len(), 5);
    own.iter().zip(&expected).for_each(|(own, expected)| assert_close(own, expected, 1e-3));
}

#[test]
fn the_peak_of_loading_and_generation_is_predicted_exactly() {
    let written = written();
    let file = written.open();
    let peak = |device: &Device| {
        let weights = Quantized::new(&file, BlockFormat::Q4_0).with_filter(|_| true);
        let model = Llama::from_weights(&config(), &weights, device).unwrap();
        generate(&model, &[[1, 2, 3]], &Sampling::new(), &Stopping::new(8)).unwrap().into_tokens().unwrap();
        device.default_allocator().unwrap().stats().peak_bytes_in_use
    };
    let dry = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    assert_eq!(peak(&cpu()), peak(&dry));
}
