//! Tests of tensors, ops and gradients on the CPU. The binary `cuda_ops` runs those of ops on CUDA kernels too.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod any_bytes;
mod call_paths;
mod callbacks;
mod checkpoint;
mod dtypes;
mod estimated_time;
#[path = "../frames/mod.rs"]
mod frames;
mod gradient_hooks;
mod gradients;
mod gradients_of_passes;
mod half_errors;
mod half_ops;
mod limits;
mod mixed;
mod ops_dry;
mod ops_edges;
mod ops_errors;
mod ops_errors_devices;
mod ops_errors_layers;
mod ops_errors_rows;
mod ops_extremes;
mod ops_index_types;
mod ops_integers;
mod ops_layers;
mod ops_lifetimes;
mod ops_linear_cross_entropy;
mod ops_listed;
mod ops_logic;
mod ops_long_sums;
mod ops_offsets;
mod ops_promotion;
mod ops_pytorch;
mod ops_recurrent;
mod ops_reference;
#[path = "../ops_table/mod.rs"]
mod ops_table;
mod ops_values;
mod outside_memory;
mod stale_backward;
mod threads_ending;
