//! Memory that is not ours: what the process holds in all, as the system tells.

use serde::{Deserialize, Serialize};

/// What the system says of this process, in bytes. Pools of host memory are a part of it; program code, the stacks and
/// heaps of threads and a driver's own memory are the rest. On Linux, from `/proc/self/status`; elsewhere all `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outside {
    /// Physical memory that the process holds (`VmRSS`).
    pub resident: Option<u64>,
    /// The most that it ever held (`VmHWM`).
    pub peak_resident: Option<u64>,
}

impl Outside {
    /// What the system says now.
    #[must_use]
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/status")
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// What stands in the text of `/proc/self/status`, whose unit `kB` is 1024 bytes.
    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(bfc_core::KIB)
        };
        Self { resident: field("VmRSS"), peak_resident: field("VmHWM") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_where_the_system_gives_them() {
        let status = "Name:\tx\nVmHWM:\t    5000 kB\nVmRSS:\t    4000 kB\nThreads:\t1\n";
        assert_eq!(
            Outside::parse(status),
            Outside { resident: Some(4_096_000), peak_resident: Some(5_120_000) }
        );
        assert_eq!(Outside::parse("VmRSS: many kB\n"), Outside::default());
        assert_eq!(Outside::parse("VmRSS: 18446744073709551615 kB\n"), Outside::default());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_holds_memory() {
        let Outside { resident: Some(resident), peak_resident: Some(peak) } = Outside::now() else {
            panic!("Linux tells both")
        };
        assert!(resident > 0 && resident <= peak);
    }
}
