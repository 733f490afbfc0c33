//! Prompts with answers: their tokens, and the loss of padded batches.

use std::sync::Arc;

use highwater::data::{ChatTurn, Dataset, IGNORED_TARGET, MaskedTokens, PairOptions, PairText, Pairs};
use highwater::nn::Module;
use highwater::{CrossEntropyOptions, Device, Rng, Tensor};
use highwater_models::{ChatTemplate, Llama, PairEncoder, TextError, Tokenizer};

use crate::support::{cpu, llama_config, scramble, values};
use crate::tokenizers::WORDS;

const CHAT: &str = "{% for message in messages %}[CLS]{{ message.content }}[SEP]\n{% endfor %}\
    {% if add_generation_prompt %}[CLS]{% endif %}";

fn turn(role: &str, content: &str) -> ChatTurn {
    ChatTurn { role: role.to_owned(), content: content.to_owned() }
}

#[test]
fn every_answer_of_a_conversation_is_a_target() {
    let (tokenizer, template) =
        (Tokenizer::from_json(WORDS.as_bytes()).unwrap(), ChatTemplate::new(CHAT).unwrap());
    let encoder = PairEncoder::new(&tokenizer).with_template(&template);
    let turns = ["system", "user", "assistant", "user", "assistant", "user"];
    let turns = turns.map(|role| turn(role, if role == "assistant" { "!!" } else { "hello" }));
    let sample = encoder.encode(&PairText::Chat(turns.to_vec())).unwrap();
    assert_eq!(sample.tokens(), [1, 3, 2, 1, 3, 2, 1, 5, 5, 2, 1, 3, 2, 1, 5, 5, 2]);
    let targets: Vec<usize> =
        sample.is_target().iter().enumerate().filter(|(_, target)| **target).map(|(at, _)| at).collect();
    assert_eq!(targets, [7, 8, 9, 14, 15, 16]);
    let pair = PairText::Completion { prompt: "hello".to_owned(), answer: "!".to_owned() };
    let sample = encoder.encode(&pair).unwrap();
    assert_eq!(
        (sample.tokens(), sample.is_target()),
        (&[1, 3, 2, 1, 5, 2][..], &[false, false, false, false, true, true][..])
    );
    let plain = PairEncoder::new(&tokenizer).with_end(6);
    let sample = plain.encode(&pair).unwrap();
    assert_eq!((sample.tokens(), &sample.is_target()[3..]), (&[1, 3, 2, 5, 6][..], &[true, true][..]));
    assert_eq!(plain.with_end(None).encode(&pair).unwrap().tokens(), [1, 3, 2, 5]);
}

#[test]
fn conversations_that_cannot_be_samples_are_errors() {
    let tokenizer = Tokenizer::from_json(WORDS.as_bytes()).unwrap();
    let template = ChatTemplate::new(CHAT).unwrap();
    let chat = |role: &str| PairText::Chat(vec![turn("user", "hello"), turn(role, "!")]);
    let encoder = PairEncoder::new(&tokenizer);
    let refused = |encoder: &PairEncoder<'_>, role: &str| match encoder.encode(&chat(role)) {
        Err(TextError::BadPair { problem }) => problem,
        other => panic!("{other:?}"),
    };
    assert!(refused(&encoder, "assistant").contains("chat template"));
    assert!(refused(&encoder.with_template(&template), "tool").starts_with("the role \"tool\""));
    let thinks = "{% for message in messages %}{{ message.content }}[SEP]{% endfor %}{{ '!' if add_generation_prompt }}";
    let thinks = ChatTemplate::new(thinks).unwrap();
    let pair = PairText::Completion { prompt: "hello".to_owned(), answer: "hello".to_owned() };
    let changed = encoder.with_template(&thinks).encode(&pair);
    assert!(
        matches!(&changed, Err(TextError::BadPair { problem }) if problem.starts_with("message 2")),
        "{changed:?}"
    );
}

#[test]
fn a_file_of_text_becomes_tokens() {
    use highwater_models::SpecialTokens::Omit;
    let tokenizer = Tokenizer::from_json(WORDS.as_bytes()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "\u{feff}hello hellos").unwrap();
    assert_eq!(tokenizer.encode_file(&path, Omit, 100).unwrap(), [3, 3, 4]);
    let too_long = TextError::TooLong { path: path.clone(), limit: 3 };
    assert_eq!(tokenizer.encode_file(&path, Omit, 3), Err(too_long));
    std::fs::write(&path, b"ab\xff").unwrap();
    let error = tokenizer.encode_file(&path, Omit, 100).unwrap_err();
    assert!(error.to_string().ends_with("text: invalid UTF-8 at byte 2"), "{error}");
}

/// The mean loss of the targets of some samples, and their number.
fn loss(model: &Llama, device: &Device, pairs: &Pairs, indices: &[usize]) -> (Tensor, usize) {
    let batch = pairs.get_batch(indices).unwrap();
    let (x, y) = (batch.input, batch.target.unwrap());
    let shape = x.shape().dims().to_vec();
    let (x, y) = (x.to_vec::<i64>().unwrap(), y.to_vec::<i64>().unwrap());
    let targets = y.iter().filter(|target| **target != IGNORED_TARGET).count();
    let logits = model.forward(&Tensor::from_slice(device, &x, &*shape).unwrap()).unwrap();
    let y = Tensor::from_slice(device, &y, &*shape).unwrap().flatten(0, 1).unwrap();
    let options =
        CrossEntropyOptions { ignore_index: Some(IGNORED_TARGET), ..CrossEntropyOptions::default() };
    (logits.flatten(0, 1).unwrap().cross_entropy_with(&y, options).unwrap(), targets)
}

/// Padding is after all tokens, and causal attention sees no later position. So it changes neither losses nor gradients.
#[test]
fn padding_changes_no_loss_and_no_gradient() {
    let device = cpu();
    let model = Llama::new(&llama_config(), &device, &Rng::new(1)).unwrap();
    scramble(&model);
    let sample = |prompt: u32, answer: u32| {
        let tokens: Vec<u32> = (0..prompt + answer).map(|at| (at * 7 + prompt) % 40).collect();
        let (prompt, answer) = tokens.split_at(prompt as usize);
        MaskedTokens::default().with_context(prompt).with_answer(answer)
    };
    let samples = [sample(3, 4), sample(20, 11), sample(1, 1), sample(9, 2)];
    let gradients = |loss: &Tensor| {
        let gradients = loss.backward().unwrap();
        let of = |parameter: &highwater::nn::Parameter| values(gradients.get(&parameter.tensor()).unwrap());
        model.parameters().iter().map(|(_, parameter)| of(parameter)).collect::<Vec<_>>()
    };
    for padding in [0, 39] {
        let options = PairOptions::default().with_padding(padding);
        let pairs = Pairs::new(samples.clone(), &options).unwrap();
        let (batch, targets) = loss(&model, &device, &pairs, &[0, 1, 2, 3]);
        assert_eq!((targets, pairs.targets()), (18, 18));
        let mut sum = 0.0;
        let mut summed: Vec<Vec<f64>> = Vec::new();
        for index in 0..4 {
            let (own, count) = loss(&model, &device, &pairs, &[index]);
            let weight = count as f64 / targets as f64;
            sum += values(&own)[0] * weight;
            for (at, gradient) in gradients(&own).into_iter().enumerate() {
                if summed.len() == at {
                    summed.push(vec![0.0; gradient.len()]);
                }
                summed[at].iter_mut().zip(gradient).for_each(|(sum, value)| *sum += weight * value);
            }
        }
        let whole = values(&batch)[0];
        assert!((whole - sum).abs() < 1e-5 * sum, "{whole} and {sum}");
        for (whole, summed) in gradients(&batch).iter().flatten().zip(summed.iter().flatten()) {
            assert!((whole - summed).abs() < 1e-5 * summed.abs().max(1.0), "{whole} and {summed}");
        }
    }
}

#[test]
fn batches_of_pairs_need_no_collation() {
    let device = cpu();
    let sample = |len: usize| MaskedTokens::default().with_context(&[1]).with_answer(&vec![2; len - 1]);
    let pairs = Arc::new(Pairs::new((2..12).map(sample), &PairOptions::default()).unwrap());
    let shapes: Vec<_> =
        pairs.batches(4, &device).unwrap().map(|batch| batch.unwrap().1.dims().to_vec()).collect();
    assert_eq!(shapes, [[4, 5], [4, 9], [2, 11]]);
}
