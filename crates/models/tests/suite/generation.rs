//! Generation step by step: batches, ends, errors and memory.

use std::sync::Arc;

use highwater::alloc::Bytes;
use highwater::nn::Module;
use highwater::{Device, Error, Rng, Runtime, Tensor, no_grad};
use highwater_models::{
    Gpt2, LanguageModel, Llama, Sampling, StopReason, StopTokens, Stopping, generate, load_bert,
    load_language_model,
};

use crate::support::{BERT, GPT2, LLAMA, Written, arrays, cpu, gpt2_config, llama_config, scramble, values};

fn llama(device: &Device) -> Llama {
    let model = Llama::new(&llama_config(), device, &Rng::new(1)).unwrap();
    scramble(&model);
    model
}

/// Generates greedily without a cache.
fn plain(model: &dyn LanguageModel, prompt: &[u32], new: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    for _ in 0..new {
        let tokens = Tensor::from_slice(&model.device(), &text, [1, text.len()]).unwrap();
        let logits = no_grad(|| model.forward(&tokens)?.select(1, -1)).unwrap();
        let logits = values(&logits);
        let best = (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best });
        text.push(best as u32);
    }
    text.split_off(prompt.len())
}

fn tokens(model: &dyn LanguageModel, prompts: &[&[u32]], sampling: &Sampling, new: usize) -> Vec<Vec<u32>> {
    generate(model, prompts, sampling, &Stopping::new(new)).unwrap().into_tokens().unwrap()
}

#[test]
fn prompts_of_any_lengths_continue_as_without_a_cache() {
    let device = cpu();
    let prompts: [&[u32]; 4] = [&[7, 3, 20], &[5], &[30, 2, 9], &[1, 2, 3, 4, 5, 6, 7]];
    let gpt2 = Gpt2::new(&gpt2_config(), &device, &Rng::new(1)).unwrap();
    scramble(&gpt2);
    let llama = llama(&device);
    for model in [&llama as &dyn LanguageModel, &gpt2] {
        let expected: Vec<_> = prompts.iter().map(|prompt| plain(model, prompt, 12)).collect();
        assert_eq!(tokens(model, &prompts, &Sampling::new(), 12), expected);
        // The tokens differ, so that the comparison means something.
        assert_ne!(expected[0], expected[2]);
    }
    // The whole context.
    assert_eq!(tokens(&llama, &[&[7; 60]], &Sampling::new(), 41)[0].len(), 41);
}

#[test]
fn a_stop_token_ends_its_sequence_only() {
    let device = cpu();
    let model = llama(&device);
    let prompts = [[7, 3, 20], [30, 2, 9]];
    let whole =
        generate(&model, &prompts, &Sampling::new(), &Stopping::new(12)).unwrap().into_tokens().unwrap();
    // A token that the first sequence has and the second has not, or has later.
    let first_at = |row: &[u32], token| row.iter().position(|&other| other == token).unwrap_or(12);
    let stop =
        *whole[0].iter().find(|&&token| first_at(&whole[0], token) < first_at(&whole[1], token)).unwrap();
    let ends = [0, 1].map(|row| first_at(&whole[row], stop));
    let stopping = Stopping::new(12).at(StopTokens::new([stop]));
    let mut found = [Vec::new(), Vec::new()];
    for token in generate(&model, &prompts, &Sampling::new(), &stopping).unwrap() {
        let token = token.unwrap();
        let row = &mut found[token.sequence];
        row.push(token.token);
        let expected = match row.len() {
            _ if token.token == stop => Some(StopReason::StopToken(stop)),
            12 => Some(StopReason::MaxTokens),
            _ => None,
        };
        assert_eq!(token.end, expected);
    }
    for row in 0..2 {
        assert_eq!(found[row], whole[row][..(ends[row] + 1).min(12)]);
    }
    assert!(found[0].len() < found[1].len());
}

#[test]
fn each_sequence_has_random_numbers_of_its_own() {
    let device = cpu();
    let model = llama(&device);
    let sampling = Sampling::new().temperature(1.5).unwrap().seed(3);
    let prompt: &[u32] = &[7, 3, 20];
    let [one, two] = [1, 2].map(|count| tokens(&model, &vec![prompt; count], &sampling, 20));
    assert_eq!(one[0], two[0]);
    assert_ne!(two[0], two[1]);
    assert_eq!(tokens(&model, &[prompt, prompt], &sampling, 20), two);
    // The batch of a prompt does not change its tokens.
    assert_eq!(tokens(&model, &[prompt, &[5, 6]], &sampling, 20)[0], one[0]);
    assert_ne!(tokens(&model, &[prompt], &sampling.seed(4), 20), one);
}

#[test]
fn invalid_prompts_are_errors() {
    let device = cpu();
    let model = llama(&device);
    let error = |prompt: &[u32], new| {
        generate(&model, &[&[1, 2][..], prompt], &Sampling::new(), &Stopping::new(new)).unwrap_err()
    };
    let long = error(&[1; 60], 42);
    let message = "generate: prompts must be within the context of the model together with the new tokens, got a prompt of 60 tokens and 42 new ones for a context of 100";
    assert_eq!(long.to_string(), message);
    assert!(matches!(error(&[], 1), Error::BadArgument { argument: "prompts", .. }));
    assert_eq!(error(&[3, 40], 1), Error::IndexOutOfRange { op: "generate", index: 40, len: 40 });
    assert!(matches!(error(&[1; 60], usize::MAX), Error::BadArgument { .. }));
    let none: [&[u32]; 0] = [];
    assert_eq!(tokens(&model, &none, &Sampling::new(), 5), Vec::<Vec<u32>>::new());
    assert_eq!(tokens(&model, &[&[1]], &Sampling::new(), 0), [Vec::<u32>::new()]);
    assert_eq!(device.default_allocator().unwrap().ledger().category(highwater::alloc::Category::Cache), 0);
}

/// Allocates the free memory of a pool.
fn fill(device: &Device) -> Vec<Tensor> {
    let mut all = Vec::new();
    let mut size = 1 << 20;
    while size > 0 {
        match Tensor::zeros(device, [size]) {
            Ok(tensor) => all.push(tensor),
            Err(_) => size /= 2,
        }
    }
    all
}

#[test]
fn a_step_without_memory_can_be_repeated() {
    let device = Runtime::builder().threads(1).pool(Bytes::mib(2)).build().unwrap().cpu().unwrap();
    let model = llama(&device);
    let sampling = Sampling::new().temperature(1.0).unwrap();
    let prompts: [&[u32]; 3] = [&[7, 3, 20], &[8, 8, 8], &[5]];
    let expected = tokens(&model, &prompts, &sampling, 9);
    let mut generation = generate(&model, &prompts, &sampling, &Stopping::new(9)).unwrap();
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for step in 0.. {
        // Before the prompt passes and after some steps.
        if [0, 1, 7, 20].contains(&step) {
            let memory = fill(&device);
            let items: Vec<_> = generation.by_ref().take(4).collect();
            drop(memory);
            assert!(items.iter().any(|item| item.as_ref().is_err_and(|e| e.out_of_memory().is_some())));
            for token in items.into_iter().flatten() {
                found[token.sequence].push(token.token);
            }
        }
        let Some(token) = generation.next() else { break };
        let token = token.unwrap();
        found[token.sequence].push(token.token);
    }
    assert_eq!(found[..], expected);
}

/// A folder with the configuration and the weights of a model.
fn folder(config: &str, model: &impl Module) -> Written {
    let written = Written::safetensors(arrays(model));
    std::fs::write(written.path.with_file_name("config.json"), config).unwrap();
    written
}

/// Returns the peaks of the pool and of external memory after a program on a new device.
fn peaks(device: &Device, program: impl FnOnce(&Device)) -> [u64; 2] {
    program(device);
    let pool: Arc<_> = Arc::clone(device.default_allocator().unwrap());
    [pool.stats().peak_bytes_in_use, device.external_memory().peak_bytes_in_use]
}

fn assert_predicted(program: impl Fn(&Device)) {
    let runtime = || Runtime::builder().threads(2).build().unwrap();
    let predicted = peaks(&runtime().dry().unwrap(), &program);
    let real = peaks(&runtime().cpu().unwrap(), &program);
    assert_eq!(real, predicted);
    // The weights are mapped.
    assert!(real[0] > 0 && real[1] > 0, "{real:?}");
}

#[test]
fn the_peak_of_loading_and_generation_is_predicted_exactly() {
    let device = cpu();
    let gpt2 = Gpt2::new(&gpt2_config(), &device, &Rng::new(1)).unwrap();
    for model in [folder(LLAMA, &llama(&device)), folder(GPT2, &gpt2)] {
        for new in [1, 2, 30] {
            assert_predicted(|device| {
                let model = load_language_model(model.path.parent().unwrap(), device).unwrap();
                let prompts: [&[u32]; 3] = [&[3; 20], &[4; 20], &[5; 7]];
                // A dry device chooses token 0. Here other tokens have no effect on memory.
                let sampling = Sampling::new().temperature(1.0).unwrap();
                let all = tokens(&*model, &prompts, &sampling, new);
                assert!(all.iter().all(|row| row.len() == new));
                assert!(!device.is_dry() || all[0] == vec![0; new]);
            });
        }
    }
}

#[test]
fn the_peak_of_embedding_is_predicted_exactly() {
    use highwater_models::{Bert, BertConfig};
    let model = Bert::new(&BertConfig::from_json(BERT).unwrap(), &cpu(), &Rng::new(3)).unwrap();
    let folder = folder(BERT, &model);
    assert_predicted(|device| {
        let model = load_bert(folder.path.parent().unwrap(), device).unwrap();
        let tokens = crate::support::tokens(device, [3, 9], 40);
        let mask = Tensor::ones(device, [3, 9]).unwrap();
        no_grad(|| model.sentence_embeddings(&tokens, &mask)).unwrap();
    });
}

#[test]
fn stop_tokens_of_a_dry_device_end_nothing() {
    let device = Runtime::builder().threads(1).build().unwrap().dry().unwrap();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    let stopping = Stopping::new(5).at(StopTokens::new([0]));
    let tokens = generate(&model, &[[1]], &Sampling::new(), &stopping).unwrap().into_tokens().unwrap();
    assert_eq!(tokens, [[0; 5]]);
}
