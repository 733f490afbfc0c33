//! Data sets: reading, splitting, augmenting and batching.

mod answers;
mod arrays;
mod augment;
mod batches;
mod csv;
mod dataset;
mod idx;
mod lines;
mod normalize;
mod prefetch;
mod shuffle;
mod text;

pub use augment::Augment;
pub use batches::Batches;
pub use csv::{CsvOptions, LabelColumn, TargetColumns, read_csv, read_csv_from};
pub use dataset::Dataset;
pub use idx::{IdxArray, IdxOptions, read_idx};
pub use normalize::Normalize;
pub use prefetch::Prefetched;
pub use text::Text;

pub use highwater_tensor::error::DataError;
