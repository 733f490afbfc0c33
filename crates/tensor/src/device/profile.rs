//! Device profiles: the properties of a device that a dry run uses.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bfc_core::{Amount, Bytes, printable};
use highwater_tracking::{MemoryBound, UsableMemory};

use super::gpus::{GPUS, Gpu};
use crate::backend::{DeviceRules, DeviceSpeed};
use crate::error::ParseProfileError;
use crate::speed::Peaks;

/// The compute capability that `cuda` profiles have by default: Ampere.
const DEFAULT_CAPABILITY: (u32, u32) = (8, 0);

/// The maximum length of a quotation in an error message.
const MAX_QUOTED: usize = 64;

/// The profile of a device for dry runs: this machine's CPU, or a GPU that this machine need not have.
///
/// The text form is a name, followed by options that are separated by commas. The names are `this` (this
/// machine), `cpu`, `cuda` and those of [`DeviceProfile::gpus`]. The options are
/// - `memory=24GiB`, the total memory, which `cpu` and `cuda` require,
/// - `limit=90%`, the limit of the pool (also `20GiB` or `all-1GiB`), which a GPU rounds down to a multiple of 2 MiB,
/// - `threads=8`,
/// - `compute=8.9`, the compute capability,
/// - `tflops=82.6`, `bf16-tflops=165` and `bandwidth=1008`: the peaks of a GPU in TFLOP/s (f32 without tensor cores, and
///   16-bit factors) and GB/s, from which dry runs [estimate time](Self::speed). `cuda` has no speed without them.
///
/// ```
/// use highwater::alloc::Bytes;
/// use highwater::{DeviceProfile, DeviceRules};
///
/// let card: DeviceProfile = "rtx-4090".parse()?;
/// assert_eq!(card.rules(), DeviceRules::Cuda { compute_capability: (8, 9) });
/// let other: DeviceProfile = "cuda,memory=16GiB,compute=12.0,limit=90%".parse()?;
/// assert_eq!(other.memory(), Some(Bytes::gib(16)));
/// assert!("rtx-4091".parse::<DeviceProfile>().is_err());
/// # Ok::<(), highwater::ParseProfileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProfile {
    name: Cow<'static, str>,
    rules: DeviceRules,
    memory: Option<Bytes>,
    /// The bound of this machine's memory; `None` for other machines.
    memory_bound: Option<MemoryBound>,
    limit: Option<Amount>,
    threads: Option<usize>,
    speed: Option<DeviceSpeed>,
    /// Whether this is this machine. Then the system bounds the memory and the pool.
    is_this_machine: bool,
}

impl DeviceProfile {
    /// Returns the profile of `cpu:0`: the CPU of this machine and the memory available to this process.
    /// [`UsableMemory`] lists the bounds.
    #[must_use]
    pub fn this_machine() -> Self {
        let (memory, memory_bound) =
            UsableMemory::of_this_process().map(|UsableMemory { bytes, bound }| (bytes, bound)).unzip();
        Self { is_this_machine: true, memory_bound, ..Self::new("this machine", DeviceRules::Cpu, memory) }
    }

    /// Returns the profile of a machine with this amount of memory that computes on its CPU. Its pool leaves
    /// a small reserve, as on this machine ([`UsableMemory::reserve`]), unless it has a
    /// [limit](Self::with_limit).
    #[must_use]
    pub fn cpu(memory: Bytes) -> Self {
        Self::new("cpu", DeviceRules::Cpu, Some(memory))
    }

    /// Returns the profile of a CUDA device with this amount of free memory and this compute capability.
    #[must_use]
    pub fn cuda(memory: Bytes, compute_capability: (u32, u32)) -> Self {
        Self::new("cuda", DeviceRules::Cuda { compute_capability }, Some(memory))
    }

    /// Returns the profile of a GPU by its name, such as `a100-80g`. Its memory is the total that the driver
    /// reports; a context and other processes usually occupy some hundred MiB of it. Returns `None` if the
    /// name is not one of [`gpus`](Self::gpus).
    #[must_use]
    pub fn gpu(name: &str) -> Option<Self> {
        let gpu = Gpu::named(name)?;
        let rules = DeviceRules::Cuda { compute_capability: gpu.compute_capability };
        let speed = DeviceSpeed::of_peaks(gpu.peaks());
        Some(Self { speed, ..Self::new(gpu.name, rules, Some(gpu.memory())) })
    }

    /// Returns the names of all known GPUs.
    pub fn gpus() -> impl Iterator<Item = &'static str> {
        GPUS.iter().map(|gpu| gpu.name)
    }

    const fn new(name: &'static str, rules: DeviceRules, memory: Option<Bytes>) -> Self {
        Self {
            name: Cow::Borrowed(name),
            rules,
            memory,
            memory_bound: None,
            limit: None,
            threads: None,
            speed: None,
            is_this_machine: false,
        }
    }

    /// Sets the amount of memory. The profile is then no longer that of this machine.
    #[must_use]
    pub fn with_memory(mut self, memory: Bytes) -> Self {
        if self.is_this_machine {
            self.name = Cow::Borrowed("cpu");
        }
        Self { memory: Some(memory), memory_bound: None, is_this_machine: false, ..self }
    }

    /// Limits the pool to a number of bytes, a share of the memory, or all but a reserve. The pool never reserves
    /// more: a GPU, whose regions have 2 MiB, rounds the limit down. The pool is then one region, as with [`RuntimeBuilder::pool`](crate::RuntimeBuilder::pool).
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Amount>) -> Self {
        Self { limit: Some(limit.into()), ..self }
    }

    /// Removes the limit of the pool, which then grows.
    pub(crate) fn without_limit(self) -> Self {
        Self { limit: None, ..self }
    }

    /// Sets the number of compute threads, at least 1.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: Some(threads.max(1)), ..self }
    }

    /// Sets the speed of the device, from which dry runs estimate time.
    #[must_use]
    pub fn with_speed(self, speed: DeviceSpeed) -> Self {
        Self { speed: Some(speed), ..self }
    }

    /// Returns the speed of the device: that of published peaks for GPUs by name, otherwise `None` unless it was
    /// [set](Self::with_speed). [`DeviceSpeed::of_this_machine`] measures the CPU's.
    #[must_use]
    pub const fn speed(&self) -> Option<&DeviceSpeed> {
        self.speed.as_ref()
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the allocation rules of the device.
    #[must_use]
    pub const fn rules(&self) -> DeviceRules {
        self.rules
    }

    /// Returns the total memory; on this machine, the memory available to this process. Returns `None` if
    /// this machine does not report it.
    #[must_use]
    pub const fn memory(&self) -> Option<Bytes> {
        self.memory
    }

    /// Returns the bound of the memory available to this process; `None` for other machines.
    #[must_use]
    pub const fn memory_bound(&self) -> Option<&MemoryBound> {
        self.memory_bound.as_ref()
    }

    /// Returns the memory of a machine and its bound; `None` if this machine does not report it.
    pub(crate) fn usable(&self) -> Option<UsableMemory> {
        let bound = self.memory_bound.clone().unwrap_or(MemoryBound::Physical);
        self.memory.map(|bytes| UsableMemory { bytes, bound })
    }

    /// Returns the limit of the pool, if it is set.
    #[must_use]
    pub const fn limit(&self) -> Option<Amount> {
        self.limit
    }

    /// Returns the number of compute threads, if it is set. The default is one per core of this machine.
    #[must_use]
    pub const fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// Returns the memory that bounds the addresses of a dry run; `None` for this machine, whose system may
    /// overcommit memory.
    pub(crate) const fn address_limit(&self) -> Option<Bytes> {
        if self.is_this_machine { None } else { self.memory }
    }
}

impl Default for DeviceProfile {
    fn default() -> Self {
        Self::this_machine()
    }
}

impl fmt::Display for DeviceProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", printable(&self.name))?;
        if let Some(memory) = self.memory {
            write!(f, ", {memory}")?;
        }
        if let Some(bound) = &self.memory_bound {
            write!(f, " ({bound})")?;
        }
        if let DeviceRules::Cuda { compute_capability: (major, minor) } = self.rules {
            write!(f, ", compute capability {major}.{minor}")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {limit}")?;
        }
        self.threads.map_or(Ok(()), |threads| write!(f, ", {threads} threads"))
    }
}

/// Parses a peak of a GPU.
fn parse_peak(key: &'static str, value: &str) -> Result<f64, ParseProfileError> {
    let peak = value.parse().ok().filter(|peak: &f64| peak.is_finite() && *peak > 0.0);
    let expected = "a number above 0, as in 82.6";
    peak.ok_or_else(|| ParseProfileError::BadValue { key, value: truncate(value), expected })
}

fn names() -> String {
    DeviceProfile::gpus().collect::<Vec<_>>().join(", ")
}

fn truncate(text: &str) -> String {
    text.chars().take(MAX_QUOTED).collect()
}

impl FromStr for DeviceProfile {
    type Err = ParseProfileError;

    fn from_str(text: &str) -> Result<Self, ParseProfileError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let cuda = DeviceRules::Cuda { compute_capability: DEFAULT_CAPABILITY };
        let profile = match name {
            "this" => Some(Self::this_machine()),
            "cpu" => Some(Self::new("cpu", DeviceRules::Cpu, None)),
            "cuda" => Some(Self::new("cuda", cuda, None)),
            name => Self::gpu(name),
        };
        let mut peaks = Gpu::named(name).map_or_else(Peaks::default, Gpu::peaks);
        let mut has_peaks = false;
        let mut profile =
            profile.ok_or_else(|| ParseProfileError::Unknown { name: truncate(name), known: names() })?;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (key.trim(), value.trim());
            match peaks.option(key).filter(|_| matches!(profile.rules, DeviceRules::Cuda { .. })) {
                Some((key, peak)) => (*peak, has_peaks) = (parse_peak(key, value)?, true),
                None => profile = profile.with_option(key, value)?,
            }
        }
        if has_peaks {
            let speed = DeviceSpeed::of_peaks(peaks);
            let speed = speed.ok_or_else(|| ParseProfileError::NoSpeed { name: profile.name.to_string() })?;
            profile = profile.with_speed(speed);
        }
        match (profile.memory, name) {
            (None, "cpu") => Err(ParseProfileError::NoMemory { name: "cpu" }),
            (None, "cuda") => Err(ParseProfileError::NoMemory { name: "cuda" }),
            _ => Ok(profile),
        }
    }
}

impl DeviceProfile {
    /// Sets an option from its text form.
    fn with_option(mut self, key: &str, value: &str) -> Result<Self, ParseProfileError> {
        let bad = |key, expected| ParseProfileError::BadValue { key, value: truncate(value), expected };
        match key {
            "memory" => {
                let memory: Bytes = value.parse().map_err(|_| bad("memory", "bytes, as in 24GiB"))?;
                if memory.get() == 0 {
                    return Err(bad("memory", "more than 0 bytes"));
                }
                Ok(self.with_memory(memory))
            }
            "limit" => {
                let limit: Amount =
                    value.parse().map_err(|_| bad("limit", "bytes, a percentage or all-BYTES"))?;
                Ok(self.with_limit(limit))
            }
            "threads" => {
                let threads: u16 = value.parse().map_err(|_| bad("threads", "a number from 1 to 65535"))?;
                if threads == 0 {
                    return Err(bad("threads", "a number from 1 to 65535"));
                }
                Ok(self.with_threads(threads.into()))
            }
            "compute" => {
                let expected = "a compute capability of a GPU, as in 8.9";
                let DeviceRules::Cuda { compute_capability } = &mut self.rules else {
                    return Err(bad("compute", expected));
                };
                let numbers = value
                    .split_once('.')
                    .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
                *compute_capability = numbers.ok_or_else(|| bad("compute", expected))?;
                Ok(self)
            }
            key => Err(ParseProfileError::UnknownKey { key: truncate(key) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DeviceProfile, ParseProfileError> {
        text.parse()
    }

    #[test]
    fn gpus_have_at_least_97_percent_of_their_nominal_memory() {
        for name in DeviceProfile::gpus() {
            let profile = parse(&name.to_uppercase()).unwrap();
            assert_eq!((profile.name(), profile.limit()), (name, None));
            assert!(matches!(profile.rules(), DeviceRules::Cuda { compute_capability: (7..=9, _) }));
            if let Some(nominal) = name.rsplit_once('-').and_then(|(_, size)| size.strip_suffix('g')) {
                let nominal = Bytes::gib(nominal.parse().unwrap()).get();
                let memory = profile.memory().unwrap().get();
                assert!(memory < nominal && memory > nominal / 100 * 97, "{name}");
            }
        }
    }

    #[test]
    fn options_override_the_profile() {
        let profile = parse("a100-80g, memory=20GiB, limit=50%, threads=3, compute=9.1").unwrap();
        assert_eq!(profile.to_string(), "a100-80g, 20.00 GiB, compute capability 9.1, limit 50 %, 3 threads");
        assert_eq!(parse("cpu,memory=1GiB").unwrap(), DeviceProfile::cpu(Bytes::gib(1)));
        assert_eq!(
            parse("cuda,memory=1GiB").unwrap(),
            DeviceProfile::cuda(Bytes::gib(1), DEFAULT_CAPABILITY)
        );
        assert_eq!(parse("this").unwrap(), DeviceProfile::this_machine());
        assert_eq!(parse("this,memory=1GiB").unwrap(), DeviceProfile::cpu(Bytes::gib(1)));
    }

    #[test]
    fn peaks_give_a_gpu_its_speed() {
        assert_eq!(parse("cuda,memory=1GiB").unwrap().speed(), None);
        let by_hand = parse("cuda,memory=1GiB,tflops=8.1,bf16-tflops=65,bandwidth=320").unwrap();
        let t4 = parse("t4").unwrap();
        let rates = |profile: &DeviceProfile| {
            let speed = profile.speed().unwrap();
            (speed.multiply_adds_per_second(), speed.bytes_per_second())
        };
        assert_eq!(rates(&by_hand), rates(&t4));
        // Without tensor cores, 16-bit factors are as fast as f32.
        let ([single, half], _) = rates(&parse("cuda,memory=1GiB,tflops=8,bandwidth=320").unwrap());
        assert!(single == half && single < 4e12, "{single:e}, {half:e}");
        // Other peaks of a known GPU stay.
        let ([single, _], bytes) = rates(&parse("t4,bandwidth=160").unwrap());
        assert_eq!(([single], bytes), ([rates(&t4).0[0]], rates(&t4).1 / 2.0));
    }

    #[test]
    fn errors_name_the_invalid_option() {
        for (text, message) in [
            ("", "unknown device profile \"\"; known profiles: this, cpu, cuda, t4, "),
            ("toaster", "unknown device profile \"toaster\""),
            ("cpu", "cpu requires the amount of memory, as in cpu,memory=24GiB"),
            ("cuda,threads=2", "cuda requires the amount of memory"),
            (
                "t4,",
                "a device profile has no option \"\"; its options: memory, limit, threads, compute, tflops, bf16-tflops, bandwidth",
            ),
            (
                "rtx4090",
                "unknown device profile \"rtx4090\" (did you mean rtx-4090?); known profiles: this, cpu, ",
            ),
            (
                "rtx-4090,limt=8GiB",
                "a device profile has no option \"limt\" (did you mean limit?); its options: memory, limit, ",
            ),
            ("t4,color=red", "a device profile has no option \"color\""),
            ("t4,memory=much", "memory=\"much\": expected bytes, as in 24GiB"),
            ("t4,memory=0", "memory=\"0\": expected more than 0 bytes"),
            ("t4,limit=0%", "limit=\"0%\": expected bytes, a percentage or all-BYTES"),
            ("t4,threads=0", "threads=\"0\": expected a number"),
            ("t4,threads=1000000", "threads=\"1000000\": expected a number"),
            ("t4,compute=8", "compute=\"8\": expected a compute capability"),
            ("t4,tflops=fast", "tflops=\"fast\": expected a number above 0"),
            ("t4,bandwidth=0", "bandwidth=\"0\": expected a number above 0"),
            (
                "cuda,memory=1GiB,tflops=8",
                "the speed of cuda requires tflops, as in tflops=82.6, and bandwidth",
            ),
            ("cpu,memory=1GiB,tflops=8", "a device profile has no option \"tflops\""),
            ("this,compute=8.0", "compute=\"8.0\": expected a compute capability of a GPU"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
        assert!(parse(&"x".repeat(100_000)).unwrap_err().to_string().len() < 400);
    }
}
