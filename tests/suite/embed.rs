//! The example `embed` with a tiny model: it makes pairs, trains on them, resumes, and its dry run predicts its memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use highwater::io::{Array, Arrays, Safetensors, write_safetensors_to};
use highwater::models::{Bert, BertConfig};
use highwater::prelude::*;
use serde_json::{Value, json};

const CONFIG: &str = r#"{"model_type": "bert", "vocab_size": 36, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 32}"#;

/// Writes a model with random weights, and a tokenizer whose words are w0 to w31.
fn write_model(folder: &Path) {
    fs::write(folder.join("config.json"), CONFIG).unwrap();
    let model =
        Bert::new(&BertConfig::from_json(CONFIG).unwrap(), &Device::cpu().unwrap(), &Rng::new(1)).unwrap();
    let arrays: Arrays = model
        .parameters()
        .into_iter()
        .map(|(name, parameter)| (name, Array::of(&parameter.value()).unwrap()))
        .collect();
    let file = fs::File::create(folder.join("model.safetensors")).unwrap();
    write_safetensors_to(file, &Safetensors { arrays, ..Safetensors::default() }).unwrap();
    let names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(str::to_owned);
    let words = names.into_iter().chain((0..32).map(|word| format!("w{word}")));
    let vocabulary: serde_json::Map<String, Value> =
        words.zip(0..).map(|(word, id): (_, u32)| (word, id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocabulary},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// Sentences of 1 to 20 words. The label says whether both begin with the same word.
fn pairs() -> Vec<[String; 3]> {
    let sentence = |first: usize, at: usize| {
        let words: Vec<String> = (0..1 + at * 7 % 20)
            .map(|word| format!("w{}", if word == 0 { first } else { (at + word * 5) % 32 }))
            .collect();
        words.join(" ")
    };
    let pair = |at: usize| {
        let (first, label) = (at * 3 % 32, at % 2);
        [
            sentence(first, at),
            sentence((first + label * 7) % 32, at + 11),
            ["same", "other"][label].to_owned(),
        ]
    };
    (0..60).map(pair).collect()
}

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path());
        let rows: Vec<String> = pairs().iter().map(|pair| pair.join("\t")).collect();
        fs::write(
            folder.path().join("pairs.tsv"),
            format!("sentence1\tsentence2\tlabel\n{}\n", rows.join("\n")),
        )
        .unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn run(&self, pairs: &str, args: &[&str]) -> Output {
        Command::new(crate::built::example("embed"))
            .args(["--model", &self.path(""), "--train", &self.path(pairs)])
            .args(["--batch-size", "8", "--epochs", "2", "--threads", "1", "--json", &self.path("run.json")])
            .args(args)
            // Even with a GPU.
            .env("HIGHWATER_DEVICE", "cpu")
            .output()
            .unwrap()
    }

    fn results(&self, pairs: &str, args: &[&str]) -> Value {
        let output = self.run(pairs, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&fs::read(self.path("run.json")).unwrap()).unwrap()
    }
}

#[test]
fn a_dry_run_of_the_classifier_predicts_its_memory() {
    let files = Files::new();
    let pools = |args: &[&str]| {
        let run = files.results("pairs.tsv", args);
        run["pools"].as_array().unwrap().iter().map(|pool| pool["peak_in_use"].clone()).collect::<Vec<_>>()
    };
    for option in [&[][..], &["--freeze"], &["--accumulate", "2", "--max-tokens", "12"]] {
        let [real, dry] = ["--device=cpu", "--dry-run"].map(|device| pools(&[&[device], option].concat()));
        assert_eq!(real, dry, "{option:?}");
        assert!(real[0].as_u64().is_some_and(|peak| peak > 0));
    }
}

#[test]
fn a_found_plan_of_the_classifier_has_the_predicted_peak() {
    let files = Files::new();
    let whole = files.results("pairs.tsv", &[])["pools"][0]["peak_in_use"].as_u64().unwrap();
    let limit = format!("{}B", whole * 3 / 4);
    let run = files.results("pairs.tsv", &["--fit", &limit]);
    let peak = run["pools"][0]["peak_in_use"].as_u64().unwrap();
    assert!(peak <= whole * 3 / 4, "{peak} of {whole}");
    assert_eq!(run["predicted_peak_bytes"].as_u64(), Some(peak));
}

#[test]
fn a_classifier_that_goes_on_ends_as_one_that_was_not_interrupted() {
    let files = Files::new();
    let saved = files.path("half.safetensors");
    for freeze in [&[][..], &["--freeze"]] {
        let whole = files.results("pairs.tsv", freeze);
        assert_eq!((&whole["pairs"], &whole["validation_pairs"]), (&json!(48), &json!(12)));
        files.results("pairs.tsv", &[freeze, &["--stop-after", "1", "--save", &saved]].concat());
        let resumed = files.results("pairs.tsv", &[freeze, &["--resume", &saved]].concat());
        for key in ["final_loss", "validation_accuracy", "steps"] {
            assert_eq!(whole[key], resumed[key], "{key}");
        }
    }
    let rows: Vec<_> =
        pairs().iter().map(|[first, second, _]| format!("{first}\t{second}\t{}", first.len() % 2)).collect();
    fs::write(files.path("numbers.tsv"), format!("sentence1\tsentence2\tlabel\n{}\n", rows.join("\n")))
        .unwrap();
    let output = files.run("numbers.tsv", &["--resume", &saved]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("that classifier has the labels [\"other\",\"same\"]"), "{error}");
}

#[test]
fn json_lines_give_the_run_of_the_table() {
    let files = Files::new();
    let lines: Vec<String> = pairs()
        .iter()
        .map(|[first, second, label]| {
            json!({"sentence1": first, "sentence2": second, "label": label}).to_string()
        })
        .collect();
    fs::write(files.path("pairs.jsonl"), lines.join("\n")).unwrap();
    let [table, lines] = ["pairs.tsv", "pairs.jsonl"].map(|pairs| files.results(pairs, &["--freeze"]));
    assert_eq!(table["final_loss"], lines["final_loss"]);
    fs::write(files.path("bad.jsonl"), "{\"sentence1\": \"w1\", \"sentence2\": 3, \"label\": 1}\n").unwrap();
    let output = files.run("bad.jsonl", &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("bad.jsonl: line 1"), "{error}");
}

#[test]
fn pairs_are_made_of_a_text() {
    let files = Files::new();
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/data/shakespeare.txt");
    let made = Command::new(crate::built::example("embed"))
        .args(["--make-pairs", &files.path("made.tsv"), "--file", text])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let table = fs::read_to_string(files.path("made.tsv")).unwrap();
    let labels = |label: &str| table.lines().filter(|line| line.ends_with(label)).count();
    assert!(labels("\tsame") > 150 && labels("\tsame") == labels("\tother"), "{table}");
}
