//! The sentences of a text that are nearest to a query.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use highwater::alloc::printable;
use highwater::models::{SpecialTokens, Tokenizer, load_bert};
use highwater::prelude::*;
use highwater::train::Run;
use serde_json::json;

use super::terminal::{peak, say};
use super::{Args, read};

/// Prints the sentences that are nearest to each query.
pub(super) fn find(args: &Args, (folder, file): (&Path, &Path), run: &Run) -> anyhow::Result<()> {
    let device = run.device();
    let text = read(file)?;
    let mut sentences = sentences(&text);
    ensure!(!sentences.is_empty(), "{}: no sentences", printable(file.display()));
    // Sentences of similar length need little padding.
    sentences.sort_by_key(|(_, sentence)| sentence.len());

    let tokenizer = Tokenizer::load(folder)?;
    let model = load_bert(folder, device)?;
    tokenizer.check_vocabulary(model.config().vocabulary)?;
    let most = args.max_tokens.min(model.config().positions);
    let embed = |texts: &[&str]| -> anyhow::Result<Tensor> {
        Ok(model.embed(&tokenizer.encode_batch(texts, SpecialTokens::Include, Some(most))?)?)
    };
    let started = Instant::now();
    let texts: Vec<&str> = sentences.iter().map(|(_, sentence)| sentence.as_str()).collect();
    let batches = texts.chunks(args.batch_size.into()).map(embed).collect::<anyhow::Result<Vec<_>>>()?;
    let embeddings = Tensor::concat(&batches.iter().collect::<Vec<_>>(), 0)?;
    drop(batches);
    let queries: Vec<&str> = args.query.iter().map(String::as_str).collect();
    let cosines = embed(&queries)?.matmul(&embeddings.t()?)?.to_dtype(DType::F32)?;
    let count = usize::from(args.nearest).min(sentences.len());
    let (best, places) = cosines.top_k(count, -1, SortOrder::Descending)?;

    if !device.is_dry() {
        eprintln!("{} sentences in {:.2} s", sentences.len(), started.elapsed().as_secs_f64());
        let (best, places) = (best.to_vec::<f32>()?, places.to_vec::<i64>()?);
        let rows = best.chunks(count).zip(places.chunks(count));
        for (query, (best, places)) in args.query.iter().zip(rows) {
            say(&format!("{query}\n"))?;
            for (cosine, &place) in best.iter().zip(places) {
                let (line, sentence) = sentences.get(usize::try_from(place)?).context("a place")?;
                say(&format!("  {cosine:.3}  line {line}: {sentence}\n"))?;
            }
        }
    }
    let summary = format!("{} sentences, {} queries; {}", sentences.len(), queries.len(), peak(device)?);
    let results = json!({ "sentences": sentences.len(), "parameters": model.parameter_count() });
    if args.report {
        run.finish(&summary, results)?;
    } else {
        run.finish_quietly(&summary, results)?;
    }
    Ok(())
}

/// The sentences of a text, with the number of their first line. A sentence ends with its paragraph, or with `.`, `!` or `?`
/// at the end of a word.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (number, line) in text.lines().enumerate() {
        is_open &= !line.trim().is_empty();
        for word in line.split_whitespace() {
            match all.last_mut().filter(|_| is_open) {
                Some((_, sentence)) => *sentence = format!("{sentence} {word}"),
                None => all.push((number + 1, word.to_owned())),
            }
            is_open = !word.trim_end_matches(['"', '\'', ')', '”', '’']).ends_with(['.', '!', '?']);
        }
    }
    all
}
