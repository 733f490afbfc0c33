//! Tokens for language models: JSON lines with prompts and answers, and batches by length.

use std::sync::Arc;

use highwater_nn::data::{
    Batches, DataError, DataShard, Dataset, IGNORED_TARGET, MaskedTokens, PairOptions, PairText, Pairs,
};
use highwater_tensor::{Device, Error, Runtime};

fn device() -> Device {
    Runtime::builder().threads(1).build().unwrap().cpu().unwrap()
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Bytes as tokens. The end of an answer is 0.
fn encode(pair: &PairText) -> Result<MaskedTokens, String> {
    let sample = MaskedTokens::default();
    match pair {
        PairText::Completion { prompt, answer } => {
            Ok(sample.with_context(&bytes(prompt)).with_answer(&bytes(answer)).with_answer(&[0]))
        }
        PairText::Chat(turns) => turns.iter().try_fold(sample, |sample, turn| match turn.role.as_str() {
            "user" => Ok(sample.with_context(&bytes(&turn.content))),
            "assistant" => Ok(sample.with_answer(&bytes(&turn.content)).with_answer(&[0])),
            other => Err(format!("unknown role {other}")),
        }),
    }
}

fn read(text: &[u8], options: &PairOptions) -> Result<Pairs, DataError> {
    Pairs::read_from(text, "pairs.jsonl", options, encode)
}

#[test]
fn all_forms_of_lines_are_read() {
    let text = "\u{feff}{\"prompt\": \"ab\", \"completion\": \"c\", \"id\": {\"x\": [1]}}\r\n \n\
        {\"answer\": \"e\", \"prompt\": \"\", \"completion\": null}\n\
        {\"messages\": [{\"role\": \"user\", \"content\": \"g\\u00e9\", \"name\": \"x\"}, {\"role\": \"assistant\", \"content\": \"h\"}]}";
    let pairs = read(text.as_bytes(), &PairOptions::default()).unwrap();
    let tokens: Vec<_> = (0..3).map(|at| pairs.sample(at).unwrap().tokens().to_vec()).collect();
    assert_eq!(tokens, [vec![97, 98, 99, 0], vec![101, 0], vec![103, 0xc3, 0xa9, 104, 0]]);
    assert_eq!((pairs.tokens(), pairs.longest(), pairs.truncated(), pairs.skipped()), (11, 5, 0, 0));
    // No position predicts the first token of the second sample.
    assert_eq!(pairs.targets(), 2 + 1 + 2);
    let sample = pairs.get(0).unwrap();
    assert_eq!(sample.target.unwrap().to_vec::<i64>().unwrap(), [IGNORED_TARGET, 99, 0, IGNORED_TARGET]);
}

#[test]
fn invalid_lines_are_named_with_their_byte() {
    let good = "{\"prompt\": \"\u{e9}\", \"answer\": \"b\"}\n";
    let start = good.len() as u64;
    for (line, byte, problem) in [
        ("{\"prompt\": \"a\"}", 0, "expected \"prompt\" with"),
        ("{\"prompt\": \"a\", \"answer\": \"b\", \"completion\": \"c\"}", 0, "expected \"prompt\" with"),
        ("{\"messages\": [], \"prompt\": \"a\", \"answer\": \"b\"}", 0, "expected \"prompt\" with"),
        ("{\"prompt\": 3}", 11, "invalid type: integer `3`, expected a string"),
        ("{\"messages\": [{\"role\": \"user\"}]}", 29, "missing field `content`"),
        ("{\"messages\": [{\"role\": \"cat\", \"content\": \"\"}]}", 0, "unknown role cat"),
        ("{\"prompt\": ", 10, "EOF while parsing a value"),
        ("[1]", 0, "invalid type"),
        ("{\"prompt\": \"a\u{1}\"", 13, "control character"),
    ] {
        let found = read(format!("{good}{line}").as_bytes(), &PairOptions::default()).unwrap_err();
        let DataError::BadLine { line: 2, offset, problem: text, .. } = &found else { panic!("{found:?}") };
        assert!(text.starts_with(problem) || text.contains("control"), "{line}: {found}");
        assert!(offset.abs_diff(start + byte) <= 1, "{line}: {found}");
    }
    let nested = format!("{{\"x\": {}}}", "[".repeat(100_000));
    assert!(matches!(
        read(nested.as_bytes(), &PairOptions::default()),
        Err(DataError::BadLine { line: 1, .. })
    ));
    let error = read(b"{}", &PairOptions::default()).unwrap_err();
    let expected =
        "pairs.jsonl: line 1, byte 0: expected \"prompt\" with \"answer\" or \"completion\", or \"messages\"";
    assert_eq!(error.to_string(), expected);
    let quoted = format!("{{\"messages\": \"{}\"}}", "x".repeat(10_000));
    assert!(read(quoted.as_bytes(), &PairOptions::default()).unwrap_err().to_string().len() < 300);
}

#[test]
fn limits_hold() {
    let line = "{\"prompt\": \"a\", \"answer\": \"b\"}\n";
    let text = line.repeat(3);
    let path = || "pairs.jsonl".into();
    let of = |options: &PairOptions| read(text.as_bytes(), options);
    let default = PairOptions::default;
    let length = text.len() as u64;
    assert!(of(&PairOptions { max_bytes: length, max_samples: 3, max_line_bytes: 30, ..default() }).is_ok());
    let found = of(&PairOptions { max_bytes: length - 1, ..default() });
    assert_eq!(found, Err(DataError::TooLong { path: path(), limit: length - 1 }));
    let found = of(&PairOptions { max_samples: 2, ..default() });
    assert_eq!(found, Err(DataError::TooLarge { path: path(), line: 3, what: "samples", limit: 2 }));
    let found = of(&PairOptions { max_line_bytes: 20, ..default() });
    assert_eq!(found, Err(DataError::TooLarge { path: path(), line: 1, what: "bytes in a line", limit: 20 }));
    assert_eq!(read(b"\n \n", &default()), Err(DataError::Empty { path: path() }));
    let found = of(&default().with_max_tokens(1));
    assert_eq!(found, Err(DataError::NoTargets { path: path(), samples: 3, max_tokens: 1 }));
    let archive = read(b"PK\x03\x04rest", &default());
    assert!(matches!(archive, Err(DataError::WrongFile { .. })), "{archive:?}");
    assert!(matches!(Pairs::read("none.jsonl", &default(), encode), Err(DataError::Io { .. })));
}

#[test]
fn long_samples_keep_the_beginning_of_their_answers() {
    let text = b"{\"prompt\": \"ab\", \"answer\": \"cdef\"}\n{\"prompt\": \"abcdef\", \"answer\": \"g\"}\n";
    let pairs = read(text, &PairOptions::default().with_max_tokens(4)).unwrap();
    assert_eq!((pairs.len(), pairs.truncated(), pairs.skipped()), (1, 1, 1));
    assert_eq!(pairs.sample(0).unwrap().tokens(), bytes("abcd"));
    let refused = Pairs::new([MaskedTokens::default().with_answer(&[1])], &PairOptions::default());
    assert!(matches!(refused, Err(Error::BadArgument { argument: "samples", .. })));
}

/// Samples with lengths from 2 to 60, whose first token is their number.
fn pairs(count: usize) -> Arc<Pairs> {
    let sample = |at: usize| {
        MaskedTokens::default().with_context(&[at as u32]).with_answer(&vec![7; 1 + at * 31 % 59])
    };
    Arc::new(Pairs::new((0..count).map(sample), &PairOptions::default()).unwrap())
}

/// The length and the numbers of the samples of each batch.
fn batches(batches: Batches<'_, Device>) -> Vec<(usize, Vec<i64>)> {
    let read = |(x, y): (highwater_tensor::Tensor, highwater_tensor::Tensor)| {
        assert_eq!(x.dims(), y.dims());
        let values = x.to_vec::<i64>().unwrap();
        (x.dims()[1], values.chunks(x.dims()[1]).map(|row| row[0]).collect())
    };
    batches.map(|batch| read(batch.unwrap())).collect()
}

#[test]
fn batches_by_length_have_all_samples_in_any_number_of_workers_and_resume() {
    let (data, device) = (pairs(203), device());
    let pass = |epoch| data.batches(8, &device).unwrap().shuffled(5, epoch).by_length(16).unwrap();
    let found = batches(pass(0));
    assert_eq!(found, batches(pass(0).workers(3)));
    assert_eq!(found[7..], batches(pass(0).start_at(7)));
    assert_ne!(found, batches(pass(1)));
    let mut all: Vec<i64> = found.iter().flat_map(|(_, samples)| samples.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..203).collect::<Vec<_>>());
    // The two batches of a step have the length of its longest sample.
    let length = |sample: &i64| 2 + *sample as usize * 31 % 59;
    for step in found.chunks(2) {
        let longest = step.iter().flat_map(|(_, samples)| samples).map(length).max().unwrap();
        assert!(step.iter().all(|(length, _)| *length == longest));
    }
    let padded: usize = found.iter().map(|(length, samples)| length * samples.len()).sum();
    assert!((padded as f64) < 1.4 * data.tokens() as f64, "{padded} for {}", data.tokens());
    let in_order = batches(data.batches(8, &device).unwrap().by_length(8).unwrap());
    assert!(in_order[2..].windows(2).all(|pair| pair[0].0 >= pair[1].0));
}

#[test]
fn the_second_step_has_the_largest_batches() {
    let (data, device) = (pairs(203), device());
    for (batch, step) in [(8, 8), (8, 16), (4, 16), (8, 13), (300, 300)] {
        let of = |epoch| data.batches(batch, &device).unwrap().shuffled(5, epoch).by_length(step).unwrap();
        let [rows, longest] = of(0).largest().unwrap();
        assert_eq!((rows, longest), (batch.min(203), 60));
        for epoch in 0..3 {
            let found = batches(of(epoch));
            let second = if batch > 203 { 0 } else { step.div_ceil(batch) };
            let shapes = |found: &[(usize, Vec<i64>)]| {
                found.iter().map(|(length, samples)| [samples.len(), *length]).collect::<Vec<_>>()
            };
            let shapes = shapes(&found);
            assert_eq!(
                shapes[second..(second + step / batch).max(second + 1)],
                vec![[rows, longest]; (step / batch).max(1)]
            );
            let probed = batches(of(epoch).largest_only(true).workers(2));
            assert_eq!(probed.len(), found.len());
            assert!(probed.iter().all(|(length, samples)| [samples.len(), *length] == [rows, longest]));
        }
    }
    assert_eq!(data.batches(300, &device).unwrap().drop_last().largest(), None);
}

#[test]
fn ranks_share_the_steps_of_a_pass_by_length() {
    let (data, device) = (pairs(100), device());
    let pass = || data.batches(5, &device).unwrap().shuffled(1, 2).by_length(10).unwrap();
    let whole = batches(pass());
    for rank in 0..2 {
        let own = batches(pass().sharded(DataShard::new(rank, 2).unwrap()));
        assert_eq!(own, whole.iter().skip(rank).step_by(2).cloned().collect::<Vec<_>>());
    }
    assert!(whole.chunks(2).all(|step| step[0].0 == step[1].0));
}

#[test]
fn a_data_set_without_lengths_has_no_batches_by_length() {
    let rows = highwater_nn::data::ArrayDataset::new(vec![1.0; 4], vec![], 1).unwrap();
    let device = device();
    let refused = rows.batches(2, &device).unwrap().by_length(2).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { op: "by_length", argument: "data", .. }), "{refused}");
    assert_eq!(rows.batches(2, &device).unwrap().largest(), None);
    let refused = pairs(3).batches(2, &device).unwrap().by_length(0).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { op: "by_length", argument: "step", .. }), "{refused}");
}
