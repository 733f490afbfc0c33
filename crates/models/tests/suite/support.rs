//! Tiny models and their files.

use std::path::PathBuf;

use highwater::io::{Array, Arrays, MappedSafetensors, Safetensors, SafetensorsLimits, write_safetensors_to};
use highwater::nn::Module;
use highwater::{DType, Device, Rng, Runtime, Tensor};
use highwater_models::{Gpt2Config, LlamaConfig};

pub(crate) fn cpu() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

pub(crate) const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 40, "hidden_size": 24, "intermediate_size": 36,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 100,
    "rms_norm_eps": 1e-5, "rope_theta": 100.0, "tie_word_embeddings": true}"#;

pub(crate) const GPT2: &str = r#"{"model_type": "gpt2", "vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 3,
    "n_positions": 100}"#;

pub(crate) const BERT: &str = r#"{"model_type": "bert", "vocab_size": 40, "hidden_size": 24, "intermediate_size": 36,
    "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 16}"#;

pub(crate) fn llama_config() -> LlamaConfig {
    LlamaConfig::from_json(LLAMA).unwrap()
}

pub(crate) fn gpt2_config() -> Gpt2Config {
    Gpt2Config::from_json(GPT2).unwrap()
}

/// Replaces all parameters by larger values, so that the layers have an effect.
pub(crate) fn scramble(model: &impl Module) {
    let rng = Rng::new(77);
    for (_, parameter) in model.parameters() {
        let value = parameter.value();
        let noise = Tensor::normal(value.device(), value.shape(), 0.0, 0.3, &rng).unwrap();
        parameter.set(&value.add(&noise).unwrap()).unwrap();
    }
}

pub(crate) fn tokens(device: &Device, [batch, len]: [usize; 2], vocabulary: usize) -> Tensor {
    let values: Vec<i64> = (0..batch * len).map(|at| (at * 17 % 31 % vocabulary) as i64).collect();
    Tensor::from_slice(device, &values, [batch, len]).unwrap()
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

pub(crate) fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64) {
    assert_eq!(a.dims(), b.dims());
    for (at, (a, b)) in values(a).into_iter().zip(values(b)).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "number {at}: {a} and {b}");
    }
}

/// The parameters as arrays.
pub(crate) fn arrays(model: &impl Module) -> Arrays {
    let array = |tensor: Tensor| Array::of(&tensor.contiguous().unwrap()).unwrap();
    model.parameters().into_iter().map(|(name, parameter)| (name, array(parameter.value()))).collect()
}

/// A safetensors file in a folder that lives as long as this value.
pub(crate) struct Written {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Written {
    pub(crate) fn safetensors(arrays: Arrays) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let contents = Safetensors { arrays, ..Safetensors::default() };
        write_safetensors_to(std::fs::File::create(&path).unwrap(), &contents).unwrap();
        Self { _folder: folder, path }
    }

    pub(crate) fn named(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        Self { _folder: folder, path }
    }

    pub(crate) fn open(&self) -> MappedSafetensors {
        MappedSafetensors::open(&self.path, &SafetensorsLimits::default()).unwrap()
    }
}
