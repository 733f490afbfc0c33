//! Sentence pairs with labels.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use highwater::alloc::printable;
use highwater::models::{SpecialTokens, Tokenizer};
use highwater::prelude::*;
use serde_json::Value;

use super::read;

/// The columns of a table, and the fields of a JSON line.
const COLUMNS: [&str; 3] = ["sentence1", "sentence2", "label"];

/// Each pair of this number is held out for validation.
const HELD_OUT: usize = 5;

/// Two sentences and their label.
pub(super) struct Pair {
    sentences: [String; 2],
    label: String,
}

/// Reads a table or JSON lines.
pub(super) fn read_pairs(path: &Path) -> anyhow::Result<Vec<Pair>> {
    let is_json = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "json");
    let pairs = if is_json { read_json(path)? } else { read_table(path)? };
    ensure!(pairs.len() >= HELD_OUT, "{}: fewer than {HELD_OUT} pairs", printable(path.display()));
    Ok(pairs)
}

fn read_table(path: &Path) -> anyhow::Result<Vec<Pair>> {
    let [first, second, label] = COLUMNS;
    let no_features: [&str; 0] = [];
    let options =
        CsvOptions::default().with_text([first, second]).with_classes(label).with_features(no_features);
    let table = read_csv(path, &options)?;
    let sentences = table.texts(first)?.iter().zip(table.texts(second)?);
    let pairs = sentences.zip(table.labels()).map(|((first, second), &label)| {
        let label = usize::try_from(label).ok().and_then(|label| table.class_names().get(label));
        let sentences = [first.clone(), second.clone()];
        Ok(Pair { sentences, label: label.context("a label without a name")?.clone() })
    });
    pairs.collect()
}

fn read_json(path: &Path) -> anyhow::Result<Vec<Pair>> {
    let text = read(path)?;
    let lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let pairs = lines.filter(|(_, line)| !line.trim().is_empty()).map(|(number, line)| {
        pair(line).with_context(|| format!("{}: line {}", printable(path.display()), number + 1))
    });
    pairs.collect()
}

fn pair(line: &str) -> anyhow::Result<Pair> {
    let value: Value = serde_json::from_str(line)?;
    let field = |name: &str| match &value[name] {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if name == COLUMNS[2] => Ok(number.to_string()),
        Value::Bool(label) if name == COLUMNS[2] => Ok(label.to_string()),
        _ => bail!("expected an object with the texts \"sentence1\" and \"sentence2\", and \"label\""),
    };
    let [first, second, label] = COLUMNS.map(field);
    Ok(Pair { sentences: [first?, second?], label: label? })
}

/// The names of the labels: whole numbers by value, then other names.
pub(super) fn class_names(pairs: &[Pair]) -> Vec<String> {
    let mut names: Vec<&String> = pairs.iter().map(|pair| &pair.label).collect();
    names.sort_unstable_by_key(|name| (name.parse::<i64>().map_or((1, 0), |number| (0, number)), *name));
    names.dedup();
    names.into_iter().cloned().collect()
}

/// Splits into pairs for training, and every fifth pair for validation.
pub(super) fn split(pairs: Vec<Pair>) -> [Vec<Pair>; 2] {
    let (validation, train): (Vec<_>, Vec<_>) =
        pairs.into_iter().enumerate().partition(|(number, _)| number % HELD_OUT == HELD_OUT - 1);
    [train, validation].map(|pairs| pairs.into_iter().map(|(_, pair)| pair).collect())
}

/// Encoded pairs. The input of a batch of n pairs is `[2, 2 n, len]`: the tokens, and 1 for each token that is no padding. The
/// first n rows are the first sentences, the others the second ones.
pub(super) struct EncodedPairs {
    pairs: Vec<([Vec<u32>; 2], i64)>,
}

impl EncodedPairs {
    pub(super) fn new(
        pairs: &[Pair],
        names: &[String],
        tokenizer: &Tokenizer,
        max_tokens: usize,
    ) -> anyhow::Result<Self> {
        let encode = |text: &String| tokenizer.encode(text, SpecialTokens::Include, Some(max_tokens));
        let encoded = pairs.iter().map(|Pair { sentences: [first, second], label }| {
            let class = names.iter().position(|name| name == label);
            let class = class.with_context(|| format!("no pair for training has the label {label:?}"))?;
            Ok(([encode(first)?, encode(second)?], i64::try_from(class)?))
        });
        Ok(Self { pairs: encoded.collect::<anyhow::Result<_>>()? })
    }
}

impl Dataset for EncodedPairs {
    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn get(&self, index: usize) -> highwater::Result<Sample> {
        self.get_batch(&[index])
    }

    fn sample_length(&self, index: usize) -> Option<usize> {
        self.pairs.get(index).map(|([first, second], _)| first.len().max(second.len()))
    }

    fn get_batch(&self, indices: &[usize]) -> highwater::Result<Sample> {
        let longest = indices.iter().filter_map(|&index| self.sample_length(index)).max();
        self.get_padded(indices, longest.unwrap_or(0))
    }

    fn get_padded(&self, indices: &[usize], length: usize) -> highwater::Result<Sample> {
        let pairs = || indices.iter().filter_map(|&index| self.pairs.get(index));
        let rows: Vec<&Vec<u32>> =
            [0, 1].iter().flat_map(|&at| pairs().map(move |(pair, _)| &pair[at])).collect();
        let (mut tokens, mut mask) = (Vec::new(), Vec::new());
        for (number, row) in rows.iter().enumerate() {
            tokens.extend(row.iter().map(|&token| i64::from(token)));
            mask.resize(tokens.len(), 1);
            tokens.resize((number + 1) * length, 0);
            mask.resize(tokens.len(), 0);
        }
        tokens.extend(mask);
        let labels: Vec<i64> = pairs().map(|&(_, label)| label).collect();
        Sample::new(&tokens, [2, rows.len(), length])?.with_target(&labels, [labels.len()])
    }
}
