//! The model.

use std::fmt;

use clap::ValueEnum;
use highwater::BlockFormat;
use highwater::models::{LanguageModel, load_language_model, load_quantized_language_model};
use highwater::nn::recompute::{Recomputation, Recompute};
use highwater::prelude::*;

use super::Args;

/// The blocks in which the frozen weights stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantization {
    None,
    Keep,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_1")]
    Q4_1,
    Nf4,
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("none", |value| value.get_name()))
    }
}

impl Quantization {
    /// The format of the blocks, or `None` for those of the file.
    const fn format(self) -> Option<BlockFormat> {
        match self {
            Self::None | Self::Keep => None,
            Self::Q8_0 => Some(BlockFormat::Q8_0),
            Self::Q4_0 => Some(BlockFormat::Q4_0),
            Self::Q4_1 => Some(BlockFormat::Q4_1),
            Self::Nf4 => Some(BlockFormat::Nf4),
        }
    }
}

/// Loads the model of the options.
pub(crate) fn load(args: &Args, device: &Device) -> Result<Box<dyn LanguageModel>> {
    let (path, quantize) = (&args.model, args.quantize);
    let wrong = |advice: &str| {
        let message = format!("--quantize {quantize}: {advice}");
        Err(Error::Custom { op: "finetune", message })
    };
    match (quantize, path.is_dir()) {
        (Quantization::None, _) => return Ok(load_language_model(path, device)?),
        (Quantization::Keep, true) => {
            return wrong("a folder has no blocks; choose their format, such as nf4");
        }
        (Quantization::Keep, false) | (_, true) => {}
        (_, false) => return wrong("a GGUF file has its own blocks; use keep"),
    }
    // A GGUF file keeps its blocks with any format.
    let format = quantize.format().unwrap_or(BlockFormat::Nf4);
    Ok(load_quantized_language_model(path, format, device)?)
}

/// Returns the recomputation of all layers of the model's chain, which has a name such as `model.layers`.
pub(crate) fn recompute_all(model: &dyn LanguageModel) -> Recompute {
    let mut chain: Option<(String, usize)> = None;
    for (path, _) in model.parameters() {
        let names: Vec<&str> = path.split('.').collect();
        let mut numbers =
            names.iter().enumerate().filter_map(|(at, name)| Some((at, name.parse::<usize>().ok()?)));
        if let Some((at, number)) = numbers.next() {
            let before = names[..at].join(".");
            let (known, layers) = chain.get_or_insert_with(|| (before.clone(), 0));
            if *known == before {
                *layers = (*layers).max(number + 1);
            }
        }
    }
    match chain {
        Some((path, layers)) => Recompute::new().with(path, Recomputation::of_blocks(layers, 0..layers)),
        None => Recompute::new(),
    }
}
