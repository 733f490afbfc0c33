//! The tests of modules and optimizers on the emulated CUDA device.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "suite/nn_evaluating.rs"]
mod nn_evaluating;
#[path = "suite/nn_layers.rs"]
mod nn_layers;
#[path = "suite/nn_modules.rs"]
mod nn_modules;
#[path = "suite/nn_recurrent.rs"]
mod nn_recurrent;
#[path = "suite/nn_transformer.rs"]
mod nn_transformer;
#[path = "../../tensor/tests/ops_table/mod.rs"]
mod ops_table;
#[path = "suite/optim_steps.rs"]
mod optim_steps;
#[path = "suite/walks.rs"]
mod walks;
