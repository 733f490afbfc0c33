//! Data: reading it, splitting it, and handing it out in batches.

mod batches;
mod csv;
mod dataset;
mod error;
mod idx;
mod lines;
mod shuffle;
mod text;

pub use batches::Batches;
pub use csv::{CsvOptions, LabelColumn, read_csv, read_csv_from};
pub use dataset::Dataset;
pub use error::DataError;
pub use idx::{IdxArray, read_idx};
pub use text::Text;
