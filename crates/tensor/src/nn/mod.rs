//! Modules: functions with parameters, and what they are built from.
//!
//! A [`Module`] maps a tensor to a tensor and can name its [`Parameter`]s. Names form paths, and the memory accounts
//! use the same paths: the parameter `fc1.weight` is held in the scope `fc1`, where the ops of that layer ran too.

mod activation;
mod dropout;
mod init;
mod linear;
mod module;
mod parameter;
mod sequential;

pub use activation::{Gelu, Relu, Sigmoid, Tanh};
pub use dropout::Dropout;
pub use init::{Fans, Init};
pub use linear::{Linear, LinearOptions};
pub use module::Module;
pub use parameter::Parameter;
pub use sequential::Sequential;
