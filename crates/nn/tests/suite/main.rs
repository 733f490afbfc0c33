//! Tests of modules, optimizers, data sets and file formats.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod any_bytes;
mod control_characters;
mod data_batches;
mod data_cases;
mod data_csv;
mod data_csv_text;
mod data_images;
mod data_tokens;
mod data_workers;
mod dry_runs;
mod io_cases;
mod io_checkpoint;
mod io_gguf;
mod io_mapped;
mod io_pytorch;
mod io_sharded;
mod io_state_dict;
mod lora;
mod nn_construction;
mod nn_evaluating;
mod nn_frozen;
mod nn_generation;
mod nn_layers;
mod nn_mixed;
mod nn_modules;
mod nn_parameter;
mod nn_paths;
mod nn_quantized;
mod nn_recurrent;
mod nn_transformer;
#[path = "../../../tensor/tests/ops_table/mod.rs"]
mod ops_table;
mod optim_ema;
mod optim_frozen;
mod optim_groups;
mod optim_steps;
mod optim_unknown;
mod recompute;
mod reports;
mod summaries;
mod walks;
