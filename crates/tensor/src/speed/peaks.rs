//! The speed of a GPU from its published peaks.

use highwater_kernels::cost::Class;

use super::{Curve, DeviceSpeed, Rates};

/// The published peaks of a GPU; 0 for unknown ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Peaks {
    /// TFLOP/s in f32 without tensor cores, and of 16-bit factors with f32 sums on tensor cores.
    tflops: [f64; 2],
    /// GB/s of the memory, and of uploads.
    gigabytes: [f64; 2],
}

impl Default for Peaks {
    fn default() -> Self {
        Self::new([0.0; 2], [0.0, 32.0])
    }
}

impl Peaks {
    pub(crate) const fn new(tflops: [f64; 2], gigabytes: [f64; 2]) -> Self {
        Self { tflops, gigabytes }
    }

    /// The peak with this name in the text form of a device profile.
    pub(crate) fn option(&mut self, key: &str) -> Option<(&'static str, &mut f64)> {
        let ([single, half], [memory, _]) = (&mut self.tflops, &mut self.gigabytes);
        match key {
            "tflops" => Some(("tflops", single)),
            "bf16-tflops" => Some(("bf16-tflops", half)),
            "bandwidth" => Some(("bandwidth", memory)),
            _ => None,
        }
    }
}

/// The shares of the peaks that large kernels reach: products in f32 and with 16-bit factors, memory and uploads. They, the
/// shares of attention and `LAUNCH` are chosen for the steps in docs/gpu.md on an H200; all others are assumptions.
const COMPUTE_SHARE: [f64; 2] = [0.75, 0.5];
const MEMORY_SHARE: f64 = 0.65;
const LINK_SHARE: f64 = 0.8;

/// The shares of [`COMPUTE_SHARE`] that other kernels reach. This library's own kernels compute them, without cuBLAS.
const CLASS_SHARES: [(Class, [f64; 2]); 10] = [
    (Class::Product, [1.0, 1.0]),
    (Class::Convolution, [0.5, 0.2]),
    (Class::ConvolutionWeightGrad, [0.5, 0.2]),
    (Class::Winograd, [0.5, 0.2]),
    (Class::WinogradWeightGrad, [0.5, 0.2]),
    (Class::Attention, [0.3, 0.1]),
    (Class::AttentionGrad, [0.3, 0.1]),
    (Class::Depthwise, [0.1, 0.01]),
    (Class::Recurrent, [0.1, 0.01]),
    (Class::RecurrentGrad, [0.1, 0.01]),
];

/// The multiply-adds of a product that reaches half of the rate, in units of those that the device does in a second.
const HALF_RATE: f64 = 5e-6;

/// The seconds that the host needs for a kernel, and the device at least.
const LAUNCH: f64 = 6e-6;
const START: f64 = 3e-6;

impl DeviceSpeed {
    /// Returns the speed of a GPU with these peaks; `None` without a peak of f32 or of the memory.
    ///
    /// A GPU without a peak for 16-bit factors multiplies them as fast as f32.
    pub(crate) fn of_peaks(peaks: Peaks) -> Option<Self> {
        let Peaks { tflops: [single, half], gigabytes: [memory, link] } = peaks;
        if single <= 0.0 || memory <= 0.0 {
            return None;
        }
        let tensor_cores = half > 0.0;
        let tflops = [single, if tensor_cores { half } else { single }];
        let shares = [COMPUTE_SHARE[0], COMPUTE_SHARE[usize::from(tensor_cores)]];
        let multiply = |half: usize, share: f64| {
            let rate = tflops[half] * 1e12 / 2.0 * shares[half] * share;
            // A product of few multiply-adds occupies a part of the device, for which `START` stands in part.
            Curve::new([
                [rate * HALF_RATE / 10.0, rate / 5.0],
                [rate * HALF_RATE, rate / 2.0],
                [rate * HALF_RATE * 10.0, rate],
            ])
        };
        let mut classes = vec![<[Rates; 2]>::default(); Class::COUNT];
        for (class, [single, half]) in CLASS_SHARES {
            if let Some(rates) = classes.get_mut(class as usize) {
                rates[0].products = multiply(0, single);
                rates[1].products = multiply(1, half);
            }
        }
        Some(Self {
            source: "published peaks".to_owned(),
            scale: 1.0,
            launch: LAUNCH,
            start: Some(START),
            tile: [1, 1],
            memory: Curve::constant(memory * 1e9 * MEMORY_SHARE),
            link: Curve::constant(link * 1e9 * LINK_SHARE),
            classes,
        })
    }
}
