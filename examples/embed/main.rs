//! Finds the sentences of a text that are nearest to a query, by the embeddings of a pretrained BERT, or trains a classifier of
//! sentence pairs on top of them.
//!
//! cargo run --release --features text --example embed -- --model all-MiniLM-L6-v2 --file data/shakespeare.txt --query "Who is the enemy of the people?"
//! cargo run --release --features text --example embed -- --make-pairs pairs.tsv --file data/shakespeare.txt
//! cargo run --release --features text --example embed -- --model all-MiniLM-L6-v2 --train pairs.tsv

mod data;
mod make;
mod search;
#[path = "../generate/terminal.rs"]
mod terminal;
mod train;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{ArgGroup, Parser};
use highwater::alloc::{Bytes, printable};
use highwater::train::{Every, FitOptions, Options, Run, SaveOptions, Saves};

/// The most bytes of text to read.
const LONGEST: u64 = 64 << 20;

/// Find the sentences of a text that are nearest to a query, or train a classifier of sentence pairs.
#[derive(Debug, Parser)]
#[command(group(ArgGroup::new("mode").required(true).args(["query", "train", "make_pairs"])))]
struct Args {
    /// The model: a folder with config.json, model.safetensors and tokenizer.json, such as all-MiniLM-L6-v2
    #[arg(long, value_name = "FOLDER", required_unless_present = "make_pairs")]
    model: Option<PathBuf>,

    /// The text, UTF-8
    #[arg(long, value_name = "FILE", required_unless_present = "train", conflicts_with = "train")]
    file: Option<PathBuf>,

    /// Print the sentences nearest to this query; may be repeated
    #[arg(long, value_name = "TEXT")]
    query: Vec<String>,

    /// The number of sentences to print for each query
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    nearest: u16,

    /// Sentences or pairs per batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch_size: u16,

    /// The most tokens of a sentence; the rest is ignored
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,

    /// Print the memory report after the sentences; a dry run always does
    #[arg(long)]
    report: bool,

    /// Write pairs for --train, made of the text: two parts of one passage that overlap, or parts of two passages
    #[arg(long, value_name = "FILE.tsv")]
    make_pairs: Option<PathBuf>,

    /// Train a classifier on pairs of sentences: a table (.tsv, .csv) with the columns sentence1, sentence2 and label, or JSON
    /// lines (.jsonl) with these fields
    #[arg(long, value_name = "FILE")]
    train: Option<PathBuf>,

    #[command(flatten)]
    training: train::TrainArgs,

    #[command(flatten)]
    saves: SaveOptions,

    #[command(flatten)]
    fit: FitOptions,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().with_fit(&args.fit).run("embed", |run| run_mode(&args, run))
}

fn run_mode(args: &Args, run: &Run) -> anyhow::Result<()> {
    // An option that a mode requires is there.
    let path = |option: &Option<PathBuf>| option.clone().unwrap_or_default();
    let (model, file) = (path(&args.model), path(&args.file));
    if let Some(pairs) = &args.train {
        return train::train(args, (&model, pairs), run);
    }
    ensure!(!args.fit.is_given(), "--fit finds plans for --train only");
    ensure!(args.saves.saves(Every::Epochs) == Saves::default(), "--save and --resume are for --train only");
    match &args.make_pairs {
        Some(path) => make::make(&file, path),
        None => search::find(args, (&model, &file), run),
    }
}

/// Reads a text of bounded size.
fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let name = || printable(path.display()).to_string();
    File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text)).with_context(name)?;
    ensure!(text.len() as u64 <= LONGEST, "{}: more than {} of text", name(), Bytes(LONGEST));
    Ok(text)
}
