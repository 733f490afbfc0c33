//! Random elements. Uniform elements equal those of the CPU bit for bit. Normal elements may differ in the last bits,
//! because logarithm, sine and cosine differ.

use bfc_cuda::kernels::named;

use super::Random;
use crate::cuda::Family;
use crate::cuda::launch::{Launcher, job_over, kernel, output, set_constant};
use crate::error::{KernelError, Result};
use crate::families::{Distribution, RunCuda};
use crate::shape::{DType, Scalar};

impl RunCuda for Random<'_> {
    fn run_cuda(&self, device: &Launcher, op: &'static str) -> Result<()> {
        let Self { distribution, key, ref out } = *self;
        let dtype = out.dtype();
        let mut job = job_over(out.layout());
        job.outputs[0] = output(out);
        (job.counts[0], job.counts[1]) = (key.seed, key.sequence);
        job.function = named(distribution.name());
        match distribution {
            Distribution::Uniform { low, high } => {
                if dtype == DType::Bool {
                    job.function = named("uniform_not_zero");
                }
                (job.constants[0], job.constants[1]) = (low, high);
                job.constants[2] = match dtype {
                    // The kernel rounds to 16 bits after the clamp.
                    DType::F32 | DType::F16 | DType::BF16 if high as f32 > low as f32 => {
                        f64::from((high as f32).next_down())
                    }
                    DType::F32 | DType::F16 | DType::BF16 => f64::from(low as f32),
                    DType::F64 if high > low => high.next_down(),
                    DType::F64 => low,
                    DType::I64 | DType::I32 | DType::U32 | DType::U8 | DType::Bool => {
                        (high.ceil() - 1.0).max(low.floor())
                    }
                };
            }
            Distribution::Normal { .. } if !dtype.is_float() => {
                return Err(KernelError::UnsupportedDType { op, dtype });
            }
            Distribution::Normal { mean, std } => {
                (job.constants[0], job.constants[1]) = (mean, std);
            }
            Distribution::Bernoulli { p, value } => {
                set_constant(&mut job, 1, dtype, Scalar::Float(value));
                job.constants[0] = p;
            }
        }
        device.launch_elementwise(op, kernel(Family::Random, "random", dtype), job.count, &job)
    }
}
