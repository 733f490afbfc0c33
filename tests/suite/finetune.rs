//! The example `finetune`, with a tiny model: it learns, resumes, and needs the predicted memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use highwater::io::{Array, Safetensors, write_safetensors_to};
use highwater::models::{Llama, LlamaConfig};
use highwater::nn::Module;
use highwater::{Device, Rng};
use serde_json::{Value, json};
use tempfile::TempDir;

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": true}"#;

/// Writes a model, its tokenizer, a text and prompts with answers.
fn files() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model =
        Llama::new(&LlamaConfig::from_json(CONFIG).unwrap(), &Device::cpu().unwrap(), &Rng::new(0)).unwrap();
    let arrays = model.parameters().into_iter().map(|(name, parameter)| {
        // The rows of the frozen table are small: their products cannot tell the tokens apart.
        let scale = if name.contains("embed_tokens") { 20.0 } else { 1.0 };
        let values = parameter.value().mul_scalar(scale).unwrap();
        (name, Array::of(&values).unwrap())
    });
    let arrays = arrays.collect();
    let contents = Safetensors { arrays, ..Safetensors::default() };
    write_safetensors_to(fs::File::create(at("model.safetensors")).unwrap(), &contents).unwrap();
    fs::write(at("config.json"), CONFIG).unwrap();
    let vocabulary: Value =
        (0..40).map(|id| (format!("w{id}"), json!(id))).collect::<serde_json::Map<_, _>>().into();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "w0", "vocab": vocabulary},
    });
    fs::write(at("tokenizer.json"), tokenizer.to_string()).unwrap();
    let text: Vec<String> = (0..1200).map(|place| format!("w{}", 1 + place % 7)).collect();
    fs::write(at("text"), text.join(" ")).unwrap();
    let pairs: Vec<String> = (0..60)
        .map(|number| {
            let prompt: Vec<String> =
                (0..1 + number * 7 % 20).map(|place| format!("w{}", 1 + place % 5)).collect();
            json!({"prompt": prompt.join(" "), "answer": "w30 w31 w32"}).to_string()
        })
        .collect();
    fs::write(at("pairs.jsonl"), pairs.join("\n")).unwrap();
    folder
}

fn command(name: &str, folder: &Path, args: &[&str]) -> Output {
    Command::new(crate::built::example(name))
        .current_dir(folder)
        .args(["--model", ".", "--threads", "1"])
        .args(args)
        // Even with a GPU.
        .env("HIGHWATER_DEVICE", "cpu")
        // The speed of the machine is measured anew, not read from the cache of the user.
        .env("XDG_CACHE_HOME", folder)
        .output()
        .unwrap()
}

fn run(folder: &Path, args: &[&str]) -> Output {
    command(
        "finetune",
        folder,
        &[&["--context", "16", "--validation", "8", "--learning-rate", "0.02"], args].concat(),
    )
}

fn results(folder: &Path, args: &[&str]) -> Value {
    let json = folder.join("run.json");
    let output = run(folder, &[args, &["--json", json.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(&json).unwrap()).unwrap()
}

fn loss(results: &Value) -> f64 {
    results["validation_loss"].as_f64().unwrap()
}

const TEXT: &[&str] = &["--text", "text", "--targets", "all-linear"];
const PAIRS: &[&str] = &["--pairs", "pairs.jsonl", "--targets", "all-linear"];

#[test]
fn it_learns_and_writes_adapters_for_generate() {
    let folder = files();
    for data in [TEXT, PAIRS] {
        let begun = results(folder.path(), &[data, &["--steps", "1"]].concat());
        let learnt = results(folder.path(), &[data, &["--steps", "60", "--adapter", "adapter"]].concat());
        assert!(loss(&learnt) < 0.8 * loss(&begun), "{begun} became {learnt}");
        assert_eq!(begun["trained_parameters"], 4 * (2 * 8 * 64 + 2 * 8 * 48 + 3 * 8 * 96));
    }
    let write = |more: &[&str]| {
        let prompt = ["--prompt", "w1 w2 w3", "--tokens", "3"];
        let output = command("generate", folder.path(), &[&prompt[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_ne!(write(&["--adapter", "adapter"]), write(&[]));
}

#[test]
fn a_run_that_goes_on_ends_as_one_that_was_not_interrupted() {
    let folder = files();
    for data in [TEXT, PAIRS] {
        let args = [data, &["--steps", "6", "--dropout", "0.1"]].concat();
        let whole = results(folder.path(), &args);
        results(folder.path(), &[&args[..], &["--stop-at", "3", "--save", "half"]].concat());
        let resumed = results(folder.path(), &[&args[..], &["--resume", "half"]].concat());
        for key in ["final_loss", "validation_loss"] {
            assert_eq!(whole[key], resumed[key], "{key}");
        }
    }
    let other = run(folder.path(), &[PAIRS, &["--alpha", "8", "--resume", "half"]].concat());
    let error = String::from_utf8(other.stderr).unwrap();
    assert!(!other.status.success() && error.contains("--alpha 16"), "{error}");
}

#[test]
fn its_dry_run_has_the_peak_of_the_real_one() {
    let folder = files();
    let sample = ["--steps", "5", "--sample-every", "2", "--prompt", "w1", "--sample-tokens", "4"];
    for data in [TEXT, PAIRS] {
        for more in [&[][..], &["--recompute"], &["--precision", "bf16"], &["--quantize", "q8_0"]] {
            let pool = |device: &[&str]| {
                results(folder.path(), &[data, &sample, more, device].concat())["pools"][0].clone()
            };
            let (real, dry) = (pool(&["--device", "cpu"]), pool(&["--dry-run"]));
            assert!(real["peak_in_use"].as_u64() > Some(0), "{real}");
            for key in ["peak_in_use", "peak_reserved"] {
                assert_eq!(real[key], dry[key], "{more:?}: {key}");
            }
        }
    }
}

#[test]
fn it_trains_within_half_of_its_memory() {
    let folder = files();
    for data in [TEXT, PAIRS] {
        let args = [data, &["--steps", "3", "--batch-size", "16", "--device", "cpu"]].concat();
        let plain = results(folder.path(), &args)["pools"][0]["peak_in_use"].as_u64().unwrap();
        let limit = format!("{}B", plain * 6 / 10);
        let fit = results(folder.path(), &[&args[..], &["--fit", &limit]].concat());
        assert_eq!(fit["peak_bytes"], fit["predicted_peak_bytes"]);
        assert!(fit["peak_bytes"].as_u64().unwrap() <= plain * 6 / 10);
        assert_eq!(fit["whole_batch_reason"], Value::Null, "{fit}");
    }
}
