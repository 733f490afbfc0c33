//! A tensor runtime that accounts for every byte.
//!
//! A training loop is written as usual. Each op takes its memory from the device's pool under its own name, so at any
//! moment the runtime can say which op asked for which bytes, how high each one's memory rose, who holds what, and,
//! when memory runs out, why:
//!
//! ```
//! use highwater::prelude::*;
//!
//! fn main() -> Result<(), highwater::Error> {
//!     let (device, rng) = (Device::best()?, Rng::new(0));
//!     let data = read_csv("data/digits.csv.gz", &CsvOptions::default())?.scaled(1.0 / 16.0);
//!     let (train, test) = data.split(0.2, 0)?;
//!
//!     let model = Sequential::new()
//!         .with("fc1", Linear::new(&device, 64, 32, &rng)?)
//!         .with("relu", Relu)
//!         .with("fc2", Linear::new(&device, 32, 10, &rng)?);
//!     let mut optimizer = AdamW::new(model.parameters(), 0.01)?;
//!
//!     for epoch in 0..5 {
//!         for batch in train.batches(64, &device)?.shuffled(0, epoch) {
//!             let (x, y) = batch?;
//!             let loss = model.forward(&x)?.cross_entropy(&y)?;
//!             optimizer.step(loss.backward()?)?;
//!         }
//!     }
//!
//!     for batch in test.batches(test.rows(), &device)? {
//!         let (x, y) = batch?;
//!         let answers = no_grad(|| model.forward(&x))?.argmax(1)?;
//!         let accuracy = answers.eq(&y)?.to_dtype(DType::F32)?.mean_all()?.item::<f32>()?;
//!         assert!(accuracy > 0.9);
//!     }
//!     println!("{}", highwater::memory_report(&device)?); // which op took what, scope by scope, and the peak
//!     Ok(())
//! }
//! ```
//!
//! On [`Device::dry`] the same program makes the same requests for memory without computing anything.
//!
//! The rooms of the house, each a crate of its own: [`alloc`] has the pools (best fit with coalescing, over any
//! address space), [`tracking`] the accounts, and [`tensor`] everything that computes, of which the most used names
//! are here.

use std::sync::Arc;

pub use bfc_core as alloc;
pub use highwater_tensor as tensor;
pub use highwater_tracking as tracking;

pub use highwater_tensor::{
    Buffer, Choice, DType, Device, DeviceAllocator, Element, Error, GradCheck, GradCheckError, Gradients,
    IntoShape, Layout, Op, OpContext, Place, Placement, PlacementReason, Result, Rng, Runtime,
    RuntimeBuilder, Saved, Scalar, Shape, Storage, Tensor, View, ViewMut, apply, backend, check_gradients,
    data, is_recording, nn, no_grad, optim, with_device,
};
pub use highwater_tracking::{Phase, Report, Tracker, module, phase};

/// What most programs need.
pub mod prelude {
    pub use crate::alloc::{AllocatorAttributes, Bytes, Category};
    pub use crate::data::{CsvOptions, Dataset, LabelColumn, read_csv};
    pub use crate::nn::{Dropout, Gelu, Linear, Module, Parameter, Relu, Sequential, Sigmoid, Tanh};
    pub use crate::optim::{Adam, AdamW, Optimizer, Sgd};
    pub use crate::{DType, Device, Rng, Runtime, Tensor, module, no_grad};
}

/// The figures of all ops run so far on the device's runtime, and of the pool that ops on the device take from.
///
/// ```
/// use highwater::{Device, Tensor, memory_report};
/// let device = Device::cpu()?;
/// let _x = Tensor::zeros(&device, [100])?;
/// assert!(memory_report(&device)?.ops.iter().any(|row| row.op == "zeros" && row.live_bytes >= 400));
/// # Ok::<(), highwater::Error>(())
/// ```
///
/// # Errors
/// If the device's memory cannot be had.
pub fn memory_report(device: &Device) -> Result<Report> {
    let pool = Arc::clone(device.default_allocator()?);
    Ok(Report::new(device.tracker(), &[pool]))
}
