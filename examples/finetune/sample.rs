//! Texts that the model writes while it learns.

use highwater::models::{
    ChatTemplate, LanguageModel, Message, Sampling, SpecialTokens, StopTokens, Stopping, Tokenizer, generate,
};
use highwater::prelude::*;
use highwater::train::{Observer, StepRecord};

use super::Args;
use super::terminal::say;

/// Writes a text every few steps.
pub(crate) struct Samples<'a> {
    every: u64,
    prompt: Vec<u32>,
    beginning: String,
    sampling: Sampling,
    stopping: Stopping,
    tokenizer: &'a Tokenizer,
    model: &'a dyn LanguageModel,
}

impl<'a> Samples<'a> {
    /// Returns `None` if no samples are requested.
    pub(crate) fn new(
        args: &Args,
        tokenizer: &'a Tokenizer,
        model: &'a dyn LanguageModel,
        seed: u64,
    ) -> Result<Option<Self>> {
        let (Some(every), Some(text)) = (args.sample_every, &args.prompt) else { return Ok(None) };
        let is_plain = args.pairs.is_none() || args.no_template;
        let template = if is_plain { None } else { ChatTemplate::load(&args.model)? };
        let (prompt, beginning) = match template {
            Some(template) => {
                let text = template.render(&[Message::user(text)], true)?;
                (tokenizer.encode(&text, SpecialTokens::Omit, None)?, String::new())
            }
            None => (tokenizer.encode(text, SpecialTokens::Include, None)?, text.clone()),
        };
        let sampling = Sampling::new().temperature(0.7)?.top_p(0.9)?.seed(seed);
        let stop = model.stop_tokens().iter().copied().chain(tokenizer.eos());
        let stopping = Stopping::new(args.sample_tokens).at(StopTokens::new(stop));
        Ok(Some(Self { every, prompt, beginning, sampling, stopping, tokenizer, model }))
    }

    fn write(&self, steps: u64) -> Result<()> {
        let _scope = module("sample");
        let (mut text, mut stream) = (self.beginning.clone(), self.tokenizer.stream(SpecialTokens::Omit));
        for token in generate(self.model, &[&self.prompt], &self.sampling, &self.stopping)? {
            text += &stream.push(token?.token)?;
        }
        text += &stream.finish()?;
        if self.model.device().is_dry() {
            return Ok(());
        }
        say(&format!("after {steps} steps: {text}\n")).map_err(|error| {
            let message = error.to_string();
            Error::Custom { op: "finetune", message }
        })
    }
}

impl Observer for Samples<'_> {
    fn step(&mut self, record: &StepRecord) -> Result<()> {
        let steps = record.step + 1;
        if steps.is_multiple_of(self.every) { self.write(steps) } else { Ok(()) }
    }
}
