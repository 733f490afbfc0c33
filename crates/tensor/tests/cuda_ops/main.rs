//! Tests of ops on CUDA kernels: in the emulator, or on a device, as in `KERNELS_ON=cuda:0`.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod against_cpu;
mod attention;
#[path = "../suite/checkpoint.rs"]
mod checkpoint;
mod convolutions;
#[path = "../suite/dtypes.rs"]
mod dtypes;
mod foreign_memory;
#[path = "../suite/gradients.rs"]
mod gradients;
#[path = "../suite/gradients_of_passes.rs"]
mod gradients_of_passes;
#[path = "../suite/half_ops.rs"]
mod half_ops;
mod half_precision;
mod large;
#[path = "../suite/mixed.rs"]
mod mixed;
#[path = "../suite/ops_dry.rs"]
mod ops_dry;
#[path = "../suite/ops_edges.rs"]
mod ops_edges;
#[path = "../suite/ops_errors.rs"]
mod ops_errors;
#[path = "../suite/ops_extremes.rs"]
mod ops_extremes;
#[path = "../suite/ops_index_types.rs"]
mod ops_index_types;
#[path = "../suite/ops_integers.rs"]
mod ops_integers;
#[path = "../suite/ops_layers.rs"]
mod ops_layers;
#[path = "../suite/ops_lifetimes.rs"]
mod ops_lifetimes;
#[path = "../suite/ops_linear_cross_entropy.rs"]
mod ops_linear_cross_entropy;
#[path = "../suite/ops_long_sums.rs"]
mod ops_long_sums;
#[path = "../suite/ops_offsets.rs"]
mod ops_offsets;
#[path = "../suite/ops_pytorch.rs"]
mod ops_pytorch;
#[path = "../suite/ops_recurrent.rs"]
mod ops_recurrent;
#[path = "../suite/ops_reference.rs"]
mod ops_reference;
#[path = "../ops_table/mod.rs"]
mod ops_table;
#[path = "../suite/ops_values.rs"]
mod ops_values;
mod products;
mod steps;
