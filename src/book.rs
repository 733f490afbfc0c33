//! The programs of the book (`docs/`) and of README as doctests.
//!
//! A chapter whose programs need an optional feature is included with this feature only.

#[doc = include_str!("../README.md")]
mod readme {}

// Train

#[doc = include_str!("../docs/quickstart.md")]
mod quickstart {}

#[doc = include_str!("../docs/data.md")]
mod data {}

#[doc = include_str!("../docs/training.md")]
mod training {}

#[cfg_attr(feature = "text", doc = include_str!("../docs/pretrained.md"))]
mod pretrained {}

#[cfg_attr(feature = "text", doc = include_str!("../docs/finetune.md"))]
mod finetune {}

#[doc = include_str!("../docs/coming-from.md")]
mod coming_from {}

// Memory

#[doc = include_str!("../docs/memory.md")]
mod memory {}

#[doc = include_str!("../docs/out-of-memory.md")]
mod out_of_memory {}

#[doc = include_str!("../docs/prediction.md")]
mod prediction {}

#[cfg_attr(feature = "train", doc = include_str!("../docs/fit.md"))]
mod fit {}

// Scale

#[doc = include_str!("../docs/precision.md")]
mod precision {}

#[doc = include_str!("../docs/several-machines.md")]
mod several_machines {}

#[doc = include_str!("../docs/gpu.md")]
mod gpu {}

// The pool in other programs

#[doc = include_str!("../docs/pool.md")]
mod pool {}

#[doc = include_str!("../docs/c.md")]
mod c {}

#[doc = include_str!("../docs/python.md")]
mod python {}

#[cfg_attr(feature = "traces", doc = include_str!("../docs/traces.md"))]
mod traces {}

// Reference

#[doc = include_str!("../docs/settings.md")]
mod settings {}

#[doc = include_str!("../docs/columns.md")]
mod columns {}

#[doc = include_str!("../docs/files.md")]
mod files {}

#[doc = include_str!("../docs/upstream.md")]
mod upstream {}

#[doc = include_str!("../docs/benchmarks.md")]
mod benchmarks {}
