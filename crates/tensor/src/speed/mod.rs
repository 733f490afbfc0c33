//! The speed of a device: rates from which a dry run estimates time.
//!
//! ```text
//! kernel → work (multiply-adds, elements, bytes) → computation ┐
//!                                                 → traffic    ┴ the longer one, plus a fixed part
//! ```
//!
//! GPUs have rates from published peaks; this machine's CPU has measured ones.

mod curve;
mod peaks;

use std::fmt;

use bfc_core::printable;
use highwater_kernels::backend::dry::TimeModel;
use highwater_kernels::cost::{Class, Work};
use highwater_kernels::step_time::StepTime;
use serde::{Deserialize, Serialize};

pub(crate) use self::curve::Curve;
pub(crate) use self::peaks::Peaks;

/// The rates of a device, with their source.
///
/// ```
/// use highwater::DeviceProfile;
/// let card = DeviceProfile::gpu("h100-80g").expect("a known GPU");
/// println!("{}", card.speed().expect("named GPUs have published rates"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpeed {
    pub(crate) source: String,
    /// All times are multiplied by it.
    pub(crate) scale: f64,
    /// The seconds that the host needs for each kernel.
    pub(crate) launch: f64,
    /// For devices that run kernels while the host continues: the seconds that the device needs at least for each.
    pub(crate) start: Option<f64>,
    /// The rows and columns of the tiles of a product, which are computed in full.
    pub(crate) tile: [usize; 2],
    /// The bytes per second of kernels, by the bytes that they access.
    pub(crate) memory: Curve,
    /// The bytes per second of uploads.
    pub(crate) link: Curve,
    /// The rates of each class of kernels, in f32 and with 16-bit factors. Only products have the second.
    pub(crate) classes: Vec<[Rates; 2]>,
}

/// The rates of a class of kernels by their size. The times of a kernel are added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Multiply-adds per second.
    pub(crate) products: Curve,
    /// Rearranged elements per second.
    pub(crate) moves: Curve,
    /// Bytes read and written per second.
    pub(crate) traffic: Curve,
    /// Elements per second.
    pub(crate) elements: Curve,
}

impl Rates {
    const fn curves(&self) -> [&Curve; 4] {
        [&self.products, &self.moves, &self.traffic, &self.elements]
    }
}

/// Rates are finite.
impl Eq for DeviceSpeed {}

impl DeviceSpeed {
    /// Returns the source of the rates, such as a measurement or a data sheet.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the speed with all times multiplied by `factor`: the measured time of a step divided by its estimate.
    /// A factor that is not positive and finite changes nothing.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        let scale = self.scale * factor;
        if scale.is_finite() && scale > 0.0 {
            self.scale = scale;
        }
        self
    }

    /// Returns the most multiply-adds per second of large products, in f32 and in bf16.
    #[must_use]
    pub fn multiply_adds_per_second(&self) -> [f64; 2] {
        let rate = |half| self.rates(Class::Product, half).and_then(|rates| rates.products.rate(1e12));
        [false, true].map(|half| rate(half).unwrap_or(0.0) / self.scale)
    }

    /// Returns the bytes per second of memory traffic that exceeds all caches.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.memory.rate(1e12).unwrap_or(0.0) / self.scale
    }

    /// Returns the bytes per second of uploads from the host.
    #[must_use]
    pub fn link_bytes_per_second(&self) -> f64 {
        self.link.rate(1e12).unwrap_or(0.0) / self.scale
    }

    /// Returns the fixed seconds of each kernel.
    #[must_use]
    pub fn seconds_per_kernel(&self) -> f64 {
        self.launch * self.scale
    }

    fn rates(&self, class: Class, half: bool) -> Option<&Rates> {
        self.classes.get(class as usize).map(|rates| &rates[usize::from(half)])
    }

    /// Whether all rates are positive and finite, as a file may contain any numbers.
    pub(crate) fn is_valid(&self) -> bool {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let curves = |rates: &Rates| rates.curves().into_iter().all(Curve::is_valid);
        positive(self.scale)
            && self.launch.is_finite()
            && self.launch >= 0.0
            && self.start.is_none_or(|start| start.is_finite() && start >= 0.0)
            && self.tile.iter().all(|&size| size > 0)
            && self.memory.is_valid()
            && self.link.is_valid()
            && self.classes.len() == Class::COUNT
            && self.classes.iter().flatten().all(curves)
    }

    /// Returns the time of a kernel without its memory traffic and its launch, in seconds.
    pub(crate) fn compute_seconds(&self, work: &Work) -> f64 {
        let is_half = work.is_half && work.multiply_adds > 0;
        let Some(rates) = self.rates(work.class, is_half) else { return 0.0 };
        let (amounts, size) = (work.amounts(self.tile), work.size() as f64);
        let terms = rates.curves().into_iter().zip(amounts);
        let seconds = terms.map(|(rate, amount)| rate.seconds(amount, size)).sum::<f64>();
        // The activation of a product.
        let applied = if work.class == Class::Product { work.elements as f64 } else { 0.0 };
        let functions = self.rates(Class::Function, false);
        seconds + functions.map_or(0.0, |rates| rates.elements.seconds(applied, applied))
    }

    /// Adds the fixed part of a kernel and assigns the rest to its limit.
    fn with_launch(&self, mut time: StepTime, compute: f64, memory: f64) -> StepTime {
        let work = compute.max(memory);
        let (launch, work) = match self.start {
            None => (self.launch, work),
            // The device works while the host prepares the next kernel.
            Some(start) if start + work > self.launch => (start, work),
            Some(_) => (self.launch, 0.0),
        };
        let (launch, work) = (launch * self.scale, work * self.scale);
        [time.compute_seconds, time.memory_seconds] =
            if compute >= memory { [work, 0.0] } else { [0.0, work] };
        (time.seconds, time.launch_seconds) = (launch + work, launch);
        time
    }
}

impl TimeModel for DeviceSpeed {
    fn kernel_time(&self, work: &Work) -> StepTime {
        let bytes = work.bytes();
        let memory = self.memory.seconds(bytes as f64, bytes as f64);
        let compute = self.compute_seconds(work);
        let mut time = StepTime::default();
        (time.multiply_adds, time.bytes, time.kernels) = (work.multiply_adds, bytes, 1);
        self.with_launch(time, compute, memory)
    }

    fn upload_time(&self, bytes: u64) -> StepTime {
        let seconds = self.link.seconds(bytes as f64, bytes as f64);
        let mut time = StepTime::default();
        time.bytes = bytes;
        self.with_launch(time, 0.0, seconds)
    }
}

impl fmt::Display for DeviceSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [single, half] = self.multiply_adds_per_second().map(|rate| 2.0 * rate / 1e12);
        let bytes = self.bytes_per_second() / 1e9;
        let launch = self.seconds_per_kernel() * 1e6;
        write!(
            f,
            "{single:.3} TFLOP/s in f32, {half:.3} in bf16, {bytes:.0} GB/s, {launch:.1} µs per kernel ({})",
            printable(&self.source)
        )
    }
}
