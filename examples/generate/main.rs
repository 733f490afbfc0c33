//! Continues a text, or answers a question, with a pretrained language model.
//!
//! cargo run --release --features text --example generate -- --model SmolLM2-135M-Instruct.Q4_1.gguf --chat --prompt "Why is the sky blue?"

mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use highwater::BlockFormat;
use highwater::models::text::TextStream;
use highwater::models::{
    ChatTemplate, Message, Sampling, SpecialTokens, StopTokens, Stopping, Tokenizer, generate,
    load_language_model, load_quantized_language_model,
};
use highwater::prelude::*;
use highwater::train::{Options, Run};
use serde_json::json;
use terminal::{peak, say};

/// Continue a text, or answer a question, with a pretrained language model.
#[derive(Debug, Parser)]
struct Args {
    /// The model: a GGUF file, or a folder with config.json, model.safetensors and tokenizer.json
    #[arg(long, value_name = "PATH")]
    model: PathBuf,

    /// Keep weights in quantized blocks: those of a GGUF file; linear layers of other files are quantized to NF4
    #[arg(long)]
    quantized: bool,

    /// The beginning of the text; several are continued at the same time
    #[arg(long, value_name = "TEXT", required = true)]
    prompt: Vec<String>,

    /// Ask each prompt as a question, in the form that the model's chat template gives it
    #[arg(long)]
    chat: bool,

    /// Instructions for the model, before the question
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// The most new tokens of each text
    #[arg(long, value_name = "N", default_value_t = 100)]
    tokens: usize,

    /// Choose at random: at 1 by the model's probabilities, below 1 more probable tokens; at 0 always the most probable token
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    temperature: f32,

    /// Choose among the N most probable tokens
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,

    /// Choose among the most probable tokens that have this probability together
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    top_p: f32,

    /// Make the tokens of the text less probable, by this factor
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    repetition_penalty: f32,

    /// Print the memory report after the text; a dry run always does
    #[arg(long)]
    report: bool,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let args = Args::parse();
    args.options.clone().run("generate", |run| write_texts(&args, run))
}

fn write_texts(args: &Args, run: &Run) -> anyhow::Result<()> {
    let device = run.device();
    let tokenizer = Tokenizer::load(&args.model)?;
    let model = if args.quantized {
        load_quantized_language_model(&args.model, BlockFormat::Nf4, device)?
    } else {
        load_language_model(&args.model, device)?
    };
    ensure!(
        tokenizer.vocabulary_size() <= model.vocabulary(),
        "the tokenizer has {} tokens, but the model only {}",
        tokenizer.vocabulary_size(),
        model.vocabulary()
    );
    let prompts = prompts(args, &tokenizer)?;
    let mut sampling = Sampling::new()
        .temperature(args.temperature)?
        .top_p(args.top_p)?
        .repetition_penalty(args.repetition_penalty)?
        .seed(run.seed());
    if let Some(count) = args.top_k {
        sampling = sampling.top_k(count)?;
    }
    let stop = model.stop_tokens().iter().copied().chain(tokenizer.eos());
    let stopping = Stopping::new(args.tokens).at(StopTokens::new(stop));

    let mut speed = Speed::start();
    let generation = generate(&*model, &prompts, &sampling, &stopping)?;
    let mut output = Output::new(args, &tokenizer, stopping.tokens());
    if !device.is_dry() {
        output.begin()?;
    }
    for token in generation {
        let token = token?;
        speed.count();
        if !device.is_dry() {
            output.add(token.sequence, token.token)?;
        }
    }
    if !device.is_dry() {
        output.finish()?;
        speed.print(&prompts);
    }

    let read: usize = prompts.iter().map(Vec::len).sum();
    let summary = format!("{} new tokens after {read} of the prompts; {}", speed.tokens, peak(device)?);
    let results = json!({
        "prompt_tokens": read,
        "new_tokens": speed.tokens,
        "tokens_per_second": (!device.is_dry()).then(|| speed.per_second()).flatten(),
        "parameters": model.parameter_count(),
    });
    if args.report {
        run.finish(&summary, results)?;
    } else {
        run.finish_quietly(&summary, results)?;
    }
    Ok(())
}

/// The tokens of each prompt, in the form of a chat if requested.
fn prompts(args: &Args, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Vec<u32>>> {
    let template = args.chat.then(|| ChatTemplate::load(&args.model)).transpose()?.flatten();
    ensure!(template.is_some() || !args.chat, "--chat: the model has no chat template");
    let encode = |prompt: &String| {
        let Some(template) = &template else {
            return Ok(tokenizer.encode(prompt, SpecialTokens::Include, None)?);
        };
        let system = args.system.iter().map(Message::system);
        let messages: Vec<Message> = system.chain([Message::user(prompt)]).collect();
        // The template writes the special tokens.
        Ok(tokenizer.encode(&template.render(&messages, true)?, SpecialTokens::Omit, None)?)
    };
    args.prompt.iter().map(encode).collect()
}

/// Writes one text while it is generated, or several after each other at the end.
struct Output<'a> {
    streams: Vec<TextStream<'a>>,
    texts: Vec<String>,
    stop: &'a StopTokens,
}

impl<'a> Output<'a> {
    fn new(args: &Args, tokenizer: &'a Tokenizer, stop: &'a StopTokens) -> Self {
        // An answer stands alone; other texts begin with their prompt.
        let texts: Vec<_> =
            args.prompt.iter().map(|p| if args.chat { String::new() } else { p.clone() }).collect();
        let streams = texts.iter().map(|_| tokenizer.stream(SpecialTokens::Omit)).collect();
        Self { streams, texts, stop }
    }

    fn begin(&self) -> anyhow::Result<()> {
        if let [text] = &self.texts[..] { say(text) } else { Ok(()) }
    }

    fn add(&mut self, sequence: usize, token: u32) -> anyhow::Result<()> {
        if self.stop.contains(token) {
            return Ok(());
        }
        let piece = self.streams[sequence].push(token)?;
        if self.streams.len() == 1 {
            say(&piece)?;
        }
        self.texts[sequence] += &piece;
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        let is_alone = self.streams.len() == 1;
        for (number, (stream, text)) in self.streams.into_iter().zip(self.texts).enumerate() {
            let rest = stream.finish()?;
            let all = if is_alone { rest } else { format!("text {}: {text}{rest}", number + 1) };
            say(&(all + "\n"))?;
        }
        Ok(())
    }
}

/// The time of the prompts and of the other steps.
struct Speed {
    started: Instant,
    first: Option<Duration>,
    tokens: usize,
}

impl Speed {
    fn start() -> Self {
        Self { started: Instant::now(), first: None, tokens: 0 }
    }

    fn count(&mut self) {
        self.first.get_or_insert_with(|| self.started.elapsed());
        self.tokens += 1;
    }

    /// The tokens per second after the first one.
    fn per_second(&self) -> Option<f64> {
        let seconds = (self.started.elapsed() - self.first?).as_secs_f64();
        (self.tokens > 1 && seconds > 0.0).then(|| (self.tokens - 1) as f64 / seconds)
    }

    fn print(&self, prompts: &[Vec<u32>]) {
        let (Some(first), Some(per_second)) = (self.first, self.per_second()) else { return };
        let read: usize = prompts.iter().map(Vec::len).sum();
        eprintln!(
            "first token after {:.2} s ({} prompt tokens per second), then {per_second:.1} tokens per second",
            first.as_secs_f64(),
            (read as f64 / first.as_secs_f64()).round()
        );
    }
}
