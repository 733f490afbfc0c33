//! What a dry run has to know of the device that it stands for.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bfc_core::{Amount, Bytes};
use highwater_tracking::{MemoryBound, UsableMemory};

use super::gpus::{GPUS, Gpu};
use crate::backend::DeviceRules;
use crate::error::ParseProfileError;

/// The generation that is assumed of a GPU of which nothing is known but its memory: Ampere.
const USUAL_CAPABILITY: (u32, u32) = (8, 0);

/// The longest piece of a bad text that an error repeats.
const QUOTED: usize = 64;

/// A device that a dry run stands for: this machine's processor, or a GPU that need not be here.
///
/// As text: a name, then what is to be otherwise, separated by commas. The names are `this` (this machine), `cpu`, `cuda` and
/// those of [`DeviceProfile::gpus`]; what can be said is `memory=24GiB` (all there is), `limit=90%` (of it for the pool; also
/// `20GiB` or `all-1GiB`), `threads=8` and `compute=8.9` (the compute capability). `cpu` and `cuda` need a memory.
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
    /// What bounds the memory of this machine; `None` for other machines.
    memory_bound: Option<MemoryBound>,
    limit: Option<Amount>,
    threads: Option<usize>,
    /// Whether it is this machine: then the system says what is too much, and the limit of the pool.
    here: bool,
}

impl DeviceProfile {
    /// The processor of this machine and the memory that this process may use: what `cpu:0` is. See
    /// [`UsableMemory`] for the bounds that count.
    #[must_use]
    pub fn this_machine() -> Self {
        let (memory, memory_bound) =
            UsableMemory::of_this_process().map(|UsableMemory { bytes, bound }| (bytes, bound)).unzip();
        Self { here: true, memory_bound, ..Self::of("this machine", DeviceRules::Cpu, memory) }
    }

    /// A machine with so much memory that computes on its processor. Its pool leaves a small reserve, as on this machine
    /// ([`UsableMemory::reserve`]), unless a [limit](Self::with_limit) is given.
    #[must_use]
    pub fn cpu(memory: Bytes) -> Self {
        Self::of("cpu", DeviceRules::Cpu, Some(memory))
    }

    /// A CUDA device of this compute capability, of whose memory so much is free when the pool is made.
    #[must_use]
    pub fn cuda(memory: Bytes, compute_capability: (u32, u32)) -> Self {
        Self::of("cuda", DeviceRules::Cuda { compute_capability }, Some(memory))
    }

    /// A GPU by its name, such as `a100-80g`, with the memory that its driver tells of, as if nobody used any of it: a context
    /// and other processes take some hundred MiB. `None` for a name that is not one of [`gpus`](Self::gpus).
    #[must_use]
    pub fn gpu(name: &str) -> Option<Self> {
        let gpu = Gpu::named(name)?;
        let rules = DeviceRules::Cuda { compute_capability: gpu.compute_capability };
        Some(Self::of(gpu.name, rules, Some(gpu.memory())))
    }

    /// The names of the GPUs that are known.
    pub fn gpus() -> impl Iterator<Item = &'static str> {
        GPUS.iter().map(|gpu| gpu.name)
    }

    const fn of(name: &'static str, rules: DeviceRules, memory: Option<Bytes>) -> Self {
        Self {
            name: Cow::Borrowed(name),
            rules,
            memory,
            memory_bound: None,
            limit: None,
            threads: None,
            here: false,
        }
    }

    /// The same device with another memory; it is then no longer this machine.
    #[must_use]
    pub fn with_memory(mut self, memory: Bytes) -> Self {
        if self.here {
            self.name = Cow::Borrowed("cpu");
        }
        Self { memory: Some(memory), memory_bound: None, here: false, ..self }
    }

    /// The same device, whose pool takes at most so much: bytes, a share of the memory, or all but a reserve.
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Amount>) -> Self {
        Self { limit: Some(limit.into()), ..self }
    }

    /// The same device with so many threads that compute, at least 1.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: Some(threads.max(1)), ..self }
    }

    /// What the device is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whose rules it follows.
    #[must_use]
    pub const fn rules(&self) -> DeviceRules {
        self.rules
    }

    /// All its memory; on this machine, what the process may use. `None` if this machine does not tell.
    #[must_use]
    pub const fn memory(&self) -> Option<Bytes> {
        self.memory
    }

    /// What bounds the memory that this process may use; `None` for other machines.
    #[must_use]
    pub const fn memory_bound(&self) -> Option<&MemoryBound> {
        self.memory_bound.as_ref()
    }

    /// The memory of a machine, with what bounds it; `None` if this machine does not tell.
    pub(crate) fn usable(&self) -> Option<UsableMemory> {
        let bound = self.memory_bound.clone().unwrap_or(MemoryBound::Physical);
        self.memory.map(|bytes| UsableMemory { bytes, bound })
    }

    /// What its pool may take, if that was said.
    #[must_use]
    pub const fn limit(&self) -> Option<Amount> {
        self.limit
    }

    /// Threads that compute, if that was said; else one per core of this machine.
    #[must_use]
    pub const fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// The memory that bounds what a dry run takes; `None` for this machine, whose system may promise more than there is.
    pub(crate) const fn bound(&self) -> Option<Bytes> {
        if self.here { None } else { self.memory }
    }
}

impl Default for DeviceProfile {
    fn default() -> Self {
        Self::this_machine()
    }
}

impl fmt::Display for DeviceProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
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

fn names() -> String {
    DeviceProfile::gpus().collect::<Vec<_>>().join(", ")
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}

impl FromStr for DeviceProfile {
    type Err = ParseProfileError;

    fn from_str(text: &str) -> Result<Self, ParseProfileError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let cuda = DeviceRules::Cuda { compute_capability: USUAL_CAPABILITY };
        let profile = match name {
            "this" => Some(Self::this_machine()),
            "cpu" => Some(Self::of("cpu", DeviceRules::Cpu, None)),
            "cuda" => Some(Self::of("cuda", cuda, None)),
            name => Self::gpu(name),
        };
        let mut profile =
            profile.ok_or_else(|| ParseProfileError::Unknown { name: quoted(name), known: names() })?;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            profile = profile.with(key.trim(), value.trim())?;
        }
        match (profile.memory, name) {
            (None, "cpu") => Err(ParseProfileError::NoMemory { name: "cpu" }),
            (None, "cuda") => Err(ParseProfileError::NoMemory { name: "cuda" }),
            _ => Ok(profile),
        }
    }
}

impl DeviceProfile {
    /// The same with one thing said of it.
    fn with(mut self, key: &str, value: &str) -> Result<Self, ParseProfileError> {
        let bad = |key, expected| ParseProfileError::BadValue { key, value: quoted(value), expected };
        match key {
            "memory" => {
                let memory: Bytes = value.parse().map_err(|_| bad("memory", "bytes, as in 24GiB"))?;
                if memory.get() == 0 {
                    return Err(bad("memory", "more than nothing"));
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
            key => Err(ParseProfileError::UnknownKey { key: quoted(key) }),
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
    fn gpu_profiles_are_found_by_name() {
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
    fn what_is_said_of_a_device_counts() {
        let profile = parse("a100-80g, memory=20GiB, limit=50%, threads=3, compute=9.1").unwrap();
        assert_eq!(profile.to_string(), "a100-80g, 20.00 GiB, compute capability 9.1, limit 50 %, 3 threads");
        assert_eq!(parse("cpu,memory=1GiB").unwrap(), DeviceProfile::cpu(Bytes::gib(1)));
        assert_eq!(parse("cuda,memory=1GiB").unwrap(), DeviceProfile::cuda(Bytes::gib(1), USUAL_CAPABILITY));
        assert_eq!(parse("this").unwrap(), DeviceProfile::this_machine());
        assert_eq!(parse("this,memory=1GiB").unwrap(), DeviceProfile::cpu(Bytes::gib(1)));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, message) in [
            ("", "there is no device profile \"\"; there are this, cpu, cuda, t4, "),
            ("toaster", "there is no device profile \"toaster\""),
            ("cpu", "cpu needs its memory, as in cpu,memory=24GiB"),
            ("cuda,threads=2", "cuda needs its memory"),
            ("t4,", "\"\" cannot be said of a device profile; what can: memory, limit, threads, compute"),
            ("t4,colour=red", "\"colour\" cannot be said"),
            ("t4,memory=much", "memory=\"much\": expected bytes, as in 24GiB"),
            ("t4,memory=0", "memory=\"0\": expected more than nothing"),
            ("t4,limit=0%", "limit=\"0%\": expected bytes, a percentage or all-BYTES"),
            ("t4,threads=0", "threads=\"0\": expected a number"),
            ("t4,threads=1000000", "threads=\"1000000\": expected a number"),
            ("t4,compute=8", "compute=\"8\": expected a compute capability"),
            ("this,compute=8.0", "compute=\"8.0\": expected a compute capability of a GPU"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
        assert!(parse(&"x".repeat(100_000)).unwrap_err().to_string().len() < 400);
    }
}
