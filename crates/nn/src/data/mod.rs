//! Data sets: reading, splitting, augmenting and loading.
//!
//! A [`Dataset`] has samples by index. [`ArrayDataset`] holds all of them in memory; [`read_csv`], [`read_idx`] and
//! [`ArrayDataset::from_arrays`] create one. `ImageFolder` (feature `images`) decodes files on request. User types
//! implement the trait. [`TokenWindows`] and [`Pairs`] have the tokens of texts and of prompts with answers, for language models.
//!
//! [`Batches`] is the loader: one pass over a data set, in order or shuffled, in the calling thread or in workers. The
//! calling thread creates all tensors, so the memory accounts do not depend on the workers.

mod answers;
mod array_dataset;
mod arrays;
mod augment;
mod batches;
mod by_length;
mod csv;
mod dataset;
mod idx;
#[cfg(feature = "images")]
mod images;
mod lines;
mod loading;
mod normalize;
mod pairs;
mod sample;
mod shard;
mod shuffle;
mod text;
mod texts;
mod token_windows;
mod workers;

pub use array_dataset::ArrayDataset;
pub use augment::Augment;
pub use batches::Batches;
pub use csv::{
    ClassNames, Column, CsvOptions, Encoding, LabelColumn, Missing, TargetColumns, read_csv, read_csv_from,
};
pub use dataset::Dataset;
pub use idx::{IdxArray, IdxOptions, read_idx};
#[cfg(all(feature = "images", any(test, feature = "fuzz")))]
pub(crate) use images::decode_bytes;
#[cfg(feature = "images")]
pub use images::{Channels, ImageFolder, ImageOptions};
pub use normalize::Normalize;
pub use pairs::{ChatTurn, MaskedTokens, PairOptions, PairText, Pairs};
pub use sample::Sample;
pub use shard::DataShard;
pub use text::Text;
pub use token_windows::{IGNORED_TARGET, TokenWindows};

pub use highwater_tensor::error::DataError;
