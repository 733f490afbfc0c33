//! Command-line options for programs that train, and what they do: the device, dry runs, logs, recordings and the report.
//!
//! [`Options`] and [`SaveOptions`] are `clap` arguments to flatten into those of a program.

mod files;
mod fit;
mod options;
mod ranks;
mod report;
mod run;

pub use fit::FitOptions;
pub use options::{Options, SaveOptions, output_path};
pub use run::{Run, RunError};
