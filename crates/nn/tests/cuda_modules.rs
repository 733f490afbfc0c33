//! The tests of modules and optimizers on the emulated CUDA device.

#![cfg(feature = "cuda")]
#![allow(clippy::duplicate_mod, reason = "each file brings its own table, as it does alone")]

#[path = "nn_evaluating.rs"]
mod nn_evaluating;
#[path = "nn_layers.rs"]
mod nn_layers;
#[path = "nn_modules.rs"]
mod nn_modules;
#[path = "nn_recurrent.rs"]
mod nn_recurrent;
#[path = "optim_steps.rs"]
mod optim_steps;
