//! The speed of a GPU from its published peaks.

use super::{Curve, DeviceSpeed, Rates};
use crate::backend::cost::Class;

/// The published peaks of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Peaks {
    /// TFLOP/s in f32 without tensor cores, and of 16-bit factors with f32 sums on tensor cores.
    tflops: [f64; 2],
    /// GB/s of the memory, and of uploads.
    gigabytes: [f64; 2],
}

impl Peaks {
    pub(crate) const fn new(tflops: [f64; 2], gigabytes: [f64; 2]) -> Self {
        Self { tflops, gigabytes }
    }
}

/// The shares of the peaks that kernels reach.
const COMPUTE_SHARE: [f64; 2] = [0.75, 0.65];
const MEMORY_SHARE: f64 = 0.8;
const LINK_SHARE: f64 = 0.8;

/// The seconds that the host needs for a kernel, and the device at least.
const LAUNCH: f64 = 5e-6;
const START: f64 = 2e-6;

impl DeviceSpeed {
    /// Returns the speed of a GPU with these peaks.
    pub(crate) fn of_peaks(peaks: Peaks) -> Self {
        let Peaks { tflops, gigabytes: [memory, link] } = peaks;
        let multiply = |half: usize, share: f64| {
            let rate = tflops[half] * 1e12 / 2.0 * COMPUTE_SHARE[half] * share;
            // Products of few multiply-adds occupy a part of the device.
            Curve::new([[1e6, rate / 50.0], [1e9, rate / 2.0], [2e10, rate]])
        };
        let mut classes = vec![<[Rates; 2]>::default(); Class::COUNT];
        let shares = [
            (Class::Product, [1.0, 1.0]),
            (Class::Convolution, [0.5, 0.2]),
            (Class::ConvolutionWeightGrad, [0.5, 0.2]),
            (Class::Winograd, [0.5, 0.2]),
            (Class::WinogradWeightGrad, [0.5, 0.2]),
            (Class::Attention, [0.4, 0.2]),
            (Class::AttentionGrad, [0.4, 0.2]),
            (Class::Depthwise, [0.2, 0.02]),
            (Class::Recurrent, [0.2, 0.02]),
            (Class::RecurrentGrad, [0.2, 0.02]),
        ];
        for (class, [single, half]) in shares {
            if let Some(rates) = classes.get_mut(class as usize) {
                rates[0].products = multiply(0, single);
                rates[1].products = multiply(1, half);
            }
        }
        Self {
            source: "published peaks".to_owned(),
            scale: 1.0,
            launch: LAUNCH,
            start: Some(START),
            tile: [1, 1],
            memory: Curve::constant(memory * 1e9 * MEMORY_SHARE),
            link: Curve::constant(link * 1e9 * LINK_SHARE),
            classes,
        }
    }
}
