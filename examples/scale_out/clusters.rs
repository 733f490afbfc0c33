//! Measured and published rates of devices and links. `docs/scale-out.md` lists the sources.

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
