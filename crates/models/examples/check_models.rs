//! Compares two published models with values of `transformers`: SmolLM2-135M-Instruct and all-MiniLM-L6-v2.
//!
//! ```text
//! check_models SmolLM2-135M-Instruct.Q4_1.gguf all-MiniLM-L6-v2
//! ```
//!
//! The first argument is the GGUF file, the second the folder with `config.json` and `model.safetensors`. `-` skips a
//! model. The values are from Python 3.11, torch 2.15.0, transformers 5.24.0 and gguf 0.19.0 in f32.

use std::path::Path;
use std::time::Instant;

use highwater::io::{Gguf, GgufLimits, MappedSafetensors, SafetensorsLimits};
use highwater::models::{Bert, BertConfig, LanguageModel, Llama};
use highwater::nn::Module;
use highwater::{Device, Tensor, no_grad};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The first 12 tokens of the text; the next four are the first that the model generates.
const PROMPT: [i64; 12] = [5345, 32062, 42, 198, 6121, 392, 7219, 750, 2030, 28, 4875, 549];

/// A position, its five largest logits, and the mean and standard deviation of all.
type Row = (usize, [(usize, f64); 5], f64, f64);

const LOGITS: [Row; 3] = [
    (0, [(29, 25.4122), (28, 24.0499), (198, 23.0508), (79, 22.7308), (284, 22.7211)], 10.07538, 3.05807),
    (1, [(282, 20.6895), (28, 19.8626), (506, 18.8786), (30, 18.8172), (18, 18.7919)], 6.75057, 2.61996),
    (
        7,
        [(2030, 26.4070), (970, 21.4673), (540, 20.5480), (4296, 20.0626), (16928, 20.0335)],
        4.85893,
        3.77963,
    ),
];

/// The tokens 13 to 16 of the text, and the 16 tokens that follow them greedily.
const TEXT: [i64; 4] = [3287, 30, 198, 198];
const GENERATED: [i64; 16] =
    [504, 808, 10862, 28, 253, 1805, 555, 3365, 5325, 28, 314, 253, 12978, 284, 14688, 1212];

const SENTENCES: [(&[i64], [f64; 4]); 3] = [
    (&[101, 1037, 2158, 2003, 2652, 1037, 2858, 1012, 102], [0.021664, -0.004864, -0.009649, -0.063401]),
    (&[101, 2619, 3248, 2019, 6602, 1012, 102], [0.038490, 0.000855, 0.005676, -0.091064]),
    (&[101, 1996, 4518, 3006, 3062, 9249, 2651, 1012, 102], [0.060455, 0.005445, 0.076566, 0.053829]),
];

/// The cosines of the sentences 1 and 2, 1 and 3, 2 and 3.
const COSINES: [f64; 3] = [0.667446, -0.054027, -0.057885];

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [llama, bert] = &arguments[..] else { return Err("usage: check_models FILE.gguf FOLDER".into()) };
    let device = Device::cpu()?;
    if llama != "-" {
        check_llama(Path::new(llama), &device)?;
    }
    if bert != "-" {
        check_bert(Path::new(bert), &device)?;
    }
    Ok(())
}

/// Fails if a value differs too much.
fn close(what: &str, value: f64, expected: f64, tolerance: f64, largest: &mut f64) -> Outcome {
    *largest = largest.max((value - expected).abs());
    if (value - expected).abs() <= tolerance {
        return Ok(());
    }
    Err(format!("{what} is {value} instead of {expected}").into())
}

fn check_llama(path: &Path, device: &Device) -> Outcome {
    let start = Instant::now();
    let model = Llama::from_gguf(&Gguf::open(path, &GgufLimits::default())?, device)?;
    println!("SmolLM2: {} parameters, loaded in {:?}", model.parameter_count(), start.elapsed());
    let prompt = Tensor::from_slice(device, &PROMPT, [1, PROMPT.len()])?;
    let logits = no_grad(|| model.forward(&prompt))?;
    let mut largest = 0.0;
    for (position, top, mean, deviation) in LOGITS {
        let row: Vec<f64> = logits.at((0, position))?.to_vec::<f32>()?.into_iter().map(f64::from).collect();
        for (token, logit) in top {
            close(&format!("logit {token} at {position}"), row[token], logit, 2e-3, &mut largest)?;
        }
        let own_mean = row.iter().sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|x| (x - own_mean).powi(2)).sum::<f64>() / row.len() as f64;
        close("the mean", own_mean, mean, 2e-3, &mut largest)?;
        close("the deviation", variance.sqrt(), deviation, 2e-3, &mut largest)?;
    }
    println!("logits: largest difference {largest:.1e}");

    let start = Instant::now();
    let mut cache = model.new_cache(1, PROMPT.len() + TEXT.len() + GENERATED.len())?;
    let mut tokens: Vec<i64> = [&PROMPT[..], &TEXT].concat();
    let mut generated: Vec<i64> = Vec::new();
    while generated.len() < GENERATED.len() {
        let next = Tensor::from_slice(device, &tokens, [1, tokens.len()])?;
        let hidden = no_grad(|| model.hidden(&next, Some(&mut cache)))?;
        let last = no_grad(|| model.logits(&hidden.select(1, -1)?)?.argmax(-1))?;
        tokens = last.to_vec::<i64>()?;
        generated.extend(&tokens);
    }
    if generated != GENERATED {
        return Err(format!("generated {generated:?} instead of {GENERATED:?}").into());
    }
    println!("generated tokens: equal, in {:?}", start.elapsed());
    Ok(())
}

fn check_bert(folder: &Path, device: &Device) -> Outcome {
    let config = BertConfig::from_json(&std::fs::read_to_string(folder.join("config.json"))?)?;
    let file = MappedSafetensors::open(folder.join("model.safetensors"), &SafetensorsLimits::default())?;
    let model = Bert::from_weights(&config, &file, device)?;
    println!("MiniLM: {} parameters", model.parameter_count());
    // All sentences in one batch, with padding.
    let len = SENTENCES.iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
    let padded = |value: fn(&i64) -> i64| -> Vec<i64> {
        let rows = SENTENCES.iter();
        rows.flat_map(|(tokens, _)| (0..len).map(move |at| tokens.get(at).map_or(0, value))).collect()
    };
    let shape = [SENTENCES.len(), len];
    let tokens = Tensor::from_slice(device, &padded(|&token| token), shape)?;
    let mask = Tensor::from_slice(device, &padded(|_| 1), shape)?;
    let embeddings = no_grad(|| model.sentence_embeddings(&tokens, &mask))?;
    let mut largest = 0.0;
    for (sentence, (_, expected)) in SENTENCES.iter().enumerate() {
        let row = embeddings.at(sentence)?.to_vec::<f32>()?;
        for (value, expected) in row.into_iter().zip(expected) {
            close("an embedding", f64::from(value), *expected, 1e-4, &mut largest)?;
        }
    }
    let cosines = embeddings.matmul(&embeddings.t()?)?.to_vec::<f32>()?;
    for (at, expected) in [1, 2, 5].into_iter().zip(COSINES) {
        close("a cosine", f64::from(cosines[at]), expected, 1e-4, &mut largest)?;
    }
    println!("embeddings and cosines: largest difference {largest:.1e}");
    Ok(())
}
