//! Measured and published rates of devices and links.
//!
//! | rate | source |
//! |---|---|
//! | a GPU | a GPT of width 768 in bf16 on an H200, measured. Published: a peak of [989 TFLOP/s][h100], of which Megatron-LM reaches [41 to 48 %][megatron] |
//! | a CPU core | `op_bench --small --only GPT` on one core of an EPYC (Zen 5), measured |
//! | NVLink of an H100 | [900 GB/s in both directions][nvlink]; latency of NCCL's [model][nccl] (ring, "Simple") |
//! | InfiniBand NDR | [400 Gb/s][ndr]; NCCL's latency of a network |
//! | 100 GbE | [100 Gb/s][ethernet]; NCCL's latency of a network |
//! | MPI, CPU cores | `all_reduce_speed ordered` with 2 ranks over MPICH 4.0 on 2 cores of the same EPYC, medians of 8 runs, measured |
//!
//! [ethernet]: https://docs.nvidia.com/networking/display/Kernelupstreamv518
//! [h100]: https://glennklockwood.com/garden/processors/h100
//! [megatron]: https://github.com/NVIDIA/Megatron-LM
//! [nccl]: https://github.com/NVIDIA/nccl/blob/5067397c2676d5aed50042fc39e5c8ee96eb0027/src/graph/tuning.cc
//! [ndr]: https://docs.nvidia.com/networking/display/800GMMA4Z00NS/Overview
//! [nvlink]: https://www.nvidia.com/en-sg/technologies/hopper-architecture/

use super::time::Link;

/// Devices and the links between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) name: &'static str,
    /// The floating-point operations per second of one rank in a training step; `None` for a GPU, whose rate is an option.
    pub(crate) flops: Option<f64>,
    pub(crate) link: Link,
}

/// The TFLOP/s of a GPU: a GPT of width 768 in bf16 on an H200, measured. An H100 has the same arithmetic units.
pub(crate) const GPU_TFLOPS: f64 = 178.0;

/// A GPT of width 128 in f32 on one core of an EPYC (Zen 5), measured.
const CORE: f64 = 144e9;

pub(crate) const CLUSTERS: [Cluster; 4] = [
    Cluster { name: "NVLink", flops: None, link: Link { latency: 3.4e-6, bandwidth: 450e9 } },
    Cluster { name: "InfiniBand NDR", flops: None, link: Link { latency: 14e-6, bandwidth: 50e9 } },
    Cluster { name: "100 GbE", flops: None, link: Link { latency: 14e-6, bandwidth: 12.5e9 } },
    Cluster { name: "MPI, CPU cores", flops: Some(CORE), link: Link { latency: 11e-6, bandwidth: 1.3e9 } },
];
