//! Kernels as data: the computations that backends support, one folder per family.
//!
//! ```text
//! map/mod.rs         the operands and how they are accessed, the rules for shapes and types, the workspace, the work
//! map/functions.rs   the table of functions, if the family has several
//! map/cpu.rs         the CPU implementation
//! map/cuda.rs        the launch on CUDA devices
//! ```
//!
//! A new kernel is a struct that implements `Computation`, `RunCpu` and `RunCuda`, and its name in the list below.

mod attention;
mod batch_norm;
mod clip;
mod computation;
mod conv;
mod copy;
mod cross_entropy;
pub(crate) mod fast;
mod fill;
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "a dry run that stands for a GPU asks for workspaces alone")
)]
mod grid;
mod index;
mod layer_norm;
mod map;
mod matmul;
mod pool;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod scan;
mod softmax;
mod sort;
mod step;
mod together;
mod zip;

#[cfg(all(test, feature = "cuda"))]
mod names;

pub use self::attention::{
    AttentionGradWorkspace, AttentionInputs, AttentionWorkspace, has_contiguous_heads,
};
pub use self::batch_norm::NormalizeChannelsWorkspace;
#[cfg(feature = "cuda")]
pub(crate) use self::computation::RunCuda;
pub(crate) use self::computation::{Computation, RunCpu};
pub use self::conv::{Conv2dInputGradWorkspace, Conv2dWeightGradWorkspace, Conv2dWorkspace};
pub use self::index::ScatterAddWorkspace;
pub use self::layer_norm::{NormalizeRowsSumsWorkspace, Normalized};
pub use self::map::functions::{Domain, GradReads, Unary};
pub use self::matmul::{Activated, Activation, MatMulWorkspace};
pub use self::quantized::{BlockFormat, MatMulQuantizedWorkspace};
pub use self::random::{Distribution, RandomKey};
pub use self::recurrent::{Recurrence, RecurrentCell, RecurrentWorkspace};
pub use self::reduce::FoldWorkspace;
pub use self::reduce::functions::{Identity, Reduce, ReduceDomain};
pub use self::scan::ScanFunction;
pub use self::sort::ArgSortWorkspace;
pub use self::step::*;
#[cfg(feature = "cuda")]
pub(crate) use self::together::run_on_cuda;
pub(crate) use self::together::{run_on_cpu, work_of_launches};
pub use self::zip::functions::{Binary, Compare};
use crate::cost::Work;
use crate::cpu::parallel::Workers;
#[cfg(feature = "cuda")]
use crate::cuda::launch::Launcher;
use crate::error::Result;
use crate::operands::{Rules, Visit};
use crate::rules::DeviceRules;
use crate::shape::DType;
pub use crate::workspace::Workspace;

/// Declares [`Kernel`] from the families and their kernels.
macro_rules! kernels {
    ($($family:ident { $($name:ident),+ })+) => {
        $(pub use self::$family::{$($name),+};)+

        /// One computation of a backend, with its operands.
        ///
        /// Inputs may have any layout (strided, broadcast, empty) unless the documentation says otherwise. Outputs are
        /// contiguous and uninitialized, and have one owner. The operands of elementwise kernels have one shape; ops
        /// broadcast them before. They have one element type, or mix one 16-bit float type with f32.
        ///
        /// The [check](crate::backend::check) compares shapes, element types, devices and parameters before a backend
        /// computes. Operands that do not fit are a [`KernelError::Operand`](crate::error::KernelError::Operand).
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum Kernel<'a> {
            $($(
                #[doc = concat!("See [`", stringify!($name), "`](struct@", stringify!($name), ").")]
                $name($name<'a>),
            )+)+
        }

        $($(
            impl<'a> From<$name<'a>> for Kernel<'a> {
                #[inline(always)]
                fn from(kernel: $name<'a>) -> Self {
                    Self::$name(kernel)
                }
            }
        )+)+

        impl<'a> Kernel<'a> {
            /// The names of all kernels, for tests.
            #[doc(hidden)]
            pub const NAMES: &'static [&'static str] = &[$($(stringify!($name)),+),+];

            /// The kernel's name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $($(Self::$name(_) => stringify!($name)),+),+ }
            }

            /// Whether every device runs the kernel on 16-bit floats without an upcast.
            #[must_use]
            #[inline(always)]
            pub const fn supports_half_everywhere(&self) -> bool {
                match self { $($(Self::$name(_) => <$name<'_> as Computation<'_>>::SUPPORTS_HALF),+),+ }
            }

            /// Whether a device runs the kernel on 16-bit floats without an upcast.
            #[must_use]
            pub fn supports_half(&self, rules: DeviceRules) -> bool {
                if rules.supports_half() {
                    return true;
                }
                match self { $($(Self::$name(kernel) => kernel.supports_half_on_cpu()),+),+ }
            }

            /// Calls `visit` with the name and the access of each operand; stops at the first error. Inputs precede
            /// outputs.
            ///
            /// # Errors
            /// The error of `visit`.
            // Inlined, because most callers know the kernel at compile time.
            #[inline(always)]
            pub fn operands<'k>(&'k mut self, visit: &mut impl Visit<'k, 'a>) -> Result<()> {
                match self { $($(Self::$name(kernel) => kernel.operands(visit)),+),+ }
            }

            /// See [`Computation::check`].
            pub(crate) fn check(&self, rules: &Rules<'_>) -> Result<()> {
                match self { $($(Self::$name(kernel) => kernel.check(rules)),+),+ }
            }

            /// See [`Computation::fast_check`].
            // Inlined, because most callers know the kernel at compile time.
            #[inline(always)]
            pub(crate) fn fast_check(&mut self, device: u32) -> Option<DType> {
                match self { $($(Self::$name(kernel) => kernel.fast_check(device)),+),+ }
            }

            /// The work of the kernel, with its bytes.
            #[must_use]
            pub fn work(&mut self) -> Work {
                match self { $($(Self::$name(kernel) => kernel.work().with_traffic(kernel)),+),+ }
            }

            /// See [`RunCpu::run_cpu`].
            pub(crate) fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
                match self { $($(Self::$name(kernel) => kernel.run_cpu(workers, op)),+),+ }
            }

            /// See [`RunCuda::run_cuda`].
            #[cfg(feature = "cuda")]
            pub(crate) fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
                match self { $($(Self::$name(kernel) => kernel.run_cuda(device, op)),+),+ }
            }
        }
    };
}

kernels! {
    fill { Fill, Arange }
    copy { Copy, Flip, CopyInto }
    map { Map, MapGrad }
    zip { Zip, Accumulate, Comparison, Select }
    reduce { Fold, ArgReduce }
    sort { ArgSort }
    scan { Scan }
    matmul { MatMul, MatMulSum }
    softmax { SoftmaxRows, SoftmaxRowsGrad }
    cross_entropy { CrossEntropy, CrossEntropyGrad, CrossEntropyInPlace }
    layer_norm { NormalizeRows, NormalizeRowsGrad, NormalizeRowsSums }
    batch_norm { NormalizeChannels, NormalizeChannelsGrad }
    conv { Conv2d, Conv2dInputGrad, Conv2dWeightGrad }
    pool { Pool2d, Pool2dGrad }
    attention { Attention, AttentionGrad }
    recurrent { Recurrent, RecurrentGrad }
    index { Gather, ScatterAdd, OneHot }
    quantized { MatMulQuantized, DequantizeRows, QuantizeRows }
    random { Random }
    clip { Scale, Clip }
    step { OptimizerStep }
}
