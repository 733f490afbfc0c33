//! Reads the limits of a process's memory from the files of Linux.

use crate::base::{Bytes, KIB};

use super::{MemoryBound, UsableMemory};

/// Returns the smallest limit. `read` returns the text of a file, or `None` if there is none.
pub(super) fn usable(read: &dyn Fn(&str) -> Option<String>) -> Option<UsableMemory> {
    let physical =
        read("/proc/meminfo").and_then(|text| total(&text)).map(|bytes| (bytes, MemoryBound::Physical));
    let address_space = read("/proc/self/limits")
        .and_then(|text| address_space(&text))
        .map(|bytes| (bytes, MemoryBound::AddressSpace));
    let groups = groups(read).into_iter();
    let bounds = physical.into_iter().chain(groups).chain(address_space);
    let (bytes, bound) = bounds.min_by_key(|&(bytes, _)| bytes)?;
    Some(UsableMemory { bytes: Bytes(bytes), bound })
}

/// The total in the text of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
}

/// The soft limit on the address space in the text of `/proc/self/limits`; `None` if there is no limit.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The limits of the process's control groups and of all groups above them.
fn groups(read: &dyn Fn(&str) -> Option<String>) -> Vec<(u64, MemoryBound)> {
    let (Some(member), Some(mounts)) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo")) else {
        return Vec::new();
    };
    let mut bounds = Vec::new();
    for (version, path) in member.lines().filter_map(membership) {
        let mut mounts: Vec<Mount> = mounts.lines().filter_map(|line| Mount::of(line, version)).collect();
        // Those that show the group come first: an unrelated group may be mounted elsewhere.
        mounts.sort_by_key(|mount| mount.part(&path).is_none());
        let Some(mount) = mounts.first() else { continue };
        let Some(below) = mount.below(&path) else { continue };
        let mut group = below.as_str();
        loop {
            let file = format!("{}{group}/{}", mount.point, version.file());
            if let Some(bytes) = read(&file).and_then(|text| text.trim().parse().ok()) {
                bounds.push((bytes, version.bound(mount, group)));
            }
            let Some((above, _)) = group.rsplit_once('/') else { break };
            group = above;
        }
    }
    bounds
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The file with a group's limit: bytes, or in version 2 `max`.
    const fn file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }

    fn bound(self, mount: &Mount, group: &str) -> MemoryBound {
        let path = format!("{}{group}", mount.root.trim_end_matches('/'));
        let path = if path.is_empty() { "/".to_owned() } else { path };
        match self {
            Self::One => MemoryBound::CgroupV1 { path },
            Self::Two => MemoryBound::CgroupV2 { path },
        }
    }
}

/// The memory group that a line of `/proc/self/cgroup` names: `0::PATH`, or `NUMBER:CONTROLLERS:PATH` with `memory`.
fn membership(line: &str) -> Option<(Version, String)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let version = match (number, controllers) {
        ("0", "") => Version::Two,
        (_, controllers) if controllers.split(',').any(|name| name == "memory") => Version::One,
        _ => return None,
    };
    Some((version, path.to_owned()))
}

/// A mounted hierarchy of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The group that is mounted.
    root: String,
    /// The mount point, without a slash at the end.
    point: String,
}

impl Mount {
    /// The mount that a line of `/proc/self/mountinfo` describes, if it is of this hierarchy:
    /// `ID PARENT DEVICE ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER_OPTIONS`.
    fn of(line: &str, version: Version) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, super_options) = (system.next()?, system.nth(1).unwrap_or_default());
        let wanted = match version {
            Version::One => kind == "cgroup" && super_options.split(',').any(|option| option == "memory"),
            Version::Two => kind == "cgroup2",
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        wanted.then(|| Self { root, point: point.trim_end_matches('/').to_owned() })
    }

    /// The path of a group below the mounted one: empty, or with a slash at the start. `None` if the mount does not show the group.
    fn part<'a>(&self, group: &'a str) -> Option<&'a str> {
        let group = group.trim_end_matches('/');
        let root = self.root.trim_end_matches('/');
        group.strip_prefix(root).filter(|below| below.is_empty() || below.starts_with('/'))
    }

    /// As [`part`](Self::part). If the mount does not show the group, the mounted group itself counts: containers mount their own
    /// group this way. `None` for a group outside of the name space.
    fn below(&self, group: &str) -> Option<String> {
        let below = self.part(group).unwrap_or("");
        (!below.split('/').any(|name| name == "..")).then(|| below.to_owned())
    }
}

/// A path in `/proc/self/mountinfo`, in which `\040` is a space: three octal digits after a backslash are a byte.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| matches!(d, b'0'..=b'7')));
        match digits {
            Some(digits) => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const MEMORY: (&str, &str) = ("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n");
    const UNLIMITED: (&str, &str) = (
        "/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max address space         unlimited            unlimited            bytes     \n",
    );
    const MOUNTED_V2: (&str, &str) = (
        "/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         34 22 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    const MOUNTED_V1: (&str, &str) = (
        "/proc/self/mountinfo",
        "34 22 0:29 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
         35 22 0:30 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n\
         36 22 0:31 / /sys/fs/cgroup/unified rw shared:11 - cgroup2 cgroup2 rw\n",
    );

    /// Returns the origin and the bytes of a process's limit with these files.
    fn bound_of(files: &[(&str, &str)]) -> Option<(u64, String)> {
        let files: HashMap<&str, &str> = files.iter().copied().collect();
        let usable = usable(&|path| files.get(path).map(|text| (*text).to_owned()))?;
        Some((usable.bytes.get(), usable.bound.to_string()))
    }

    fn bounded(bytes: u64, bound: &str) -> Option<(u64, String)> {
        Some((bytes, bound.to_owned()))
    }

    #[test]
    fn physical_memory_bounds_where_nothing_else_does() {
        assert_eq!(bound_of(&[MEMORY, UNLIMITED]), bounded(16 << 30, "physical memory"));
        assert_eq!(bound_of(&[MEMORY]), bounded(16 << 30, "physical memory"));
        assert_eq!(bound_of(&[]), None);
    }

    #[test]
    fn the_smallest_limit_of_nested_v2_groups_counts() {
        let member = ("/proc/self/cgroup", "0::/system.slice/job.service/leaf\n");
        let leaf = ("/sys/fs/cgroup/system.slice/job.service/leaf/memory.max", "max\n");
        let job = ("/sys/fs/cgroup/system.slice/job.service/memory.max", "4294967296\n");
        let slice = ("/sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
        let files = [MEMORY, UNLIMITED, MOUNTED_V2, member, leaf, job];
        let found = bounded(4 << 30, "memory.max of the cgroup /system.slice/job.service");
        assert_eq!(bound_of(&files), found);
        let found = bounded(2 << 30, "memory.max of the cgroup /system.slice");
        assert_eq!(bound_of(&[&files[..], &[slice]].concat()), found);
    }

    #[test]
    fn a_container_sees_its_own_v2_group_as_the_root() {
        let files = [
            MEMORY,
            MOUNTED_V2,
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "1073741824\n"),
        ];
        assert_eq!(bound_of(&files), bounded(1 << 30, "memory.max of the cgroup /"));
    }

    #[test]
    fn a_mount_of_another_group_does_not_count() {
        let mounts = (
            "/proc/self/mountinfo",
            "33 22 0:29 /other /mnt/x rw - cgroup2 cgroup2 rw\n\
             34 22 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        let files = [
            MEMORY,
            mounts,
            ("/proc/self/cgroup", "0::/mine\n"),
            ("/mnt/x/memory.max", "1048576\n"),
            ("/sys/fs/cgroup/mine/memory.max", "2147483648\n"),
        ];
        assert_eq!(bound_of(&files), bounded(2 << 30, "memory.max of the cgroup /mine"));
    }

    #[test]
    fn v1_groups_bound_below_and_at_the_mounted_group() {
        let member = ("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/a/b\n0::/\n");
        let limit = ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n");
        let no_limit = ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        let files = [MEMORY, MOUNTED_V1, member, limit, no_limit];
        assert_eq!(bound_of(&files), bounded(512 << 20, "memory.limit_in_bytes of the cgroup /a"));

        // A container without a name space of its own: its group is what is mounted.
        let mounted = (
            "/proc/self/mountinfo",
            "35 22 0:30 /docker/x\\040y /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        );
        let member = ("/proc/self/cgroup", "4:memory:/docker/x y\n");
        let limit = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
        let found = bounded(256 << 20, "memory.limit_in_bytes of the cgroup /docker/x y");
        assert_eq!(bound_of(&[MEMORY, mounted, member, limit]), found);
    }

    #[test]
    fn a_limited_address_space_bounds() {
        let limits = (
            "/proc/self/limits",
            "Max address space         1073741824           unlimited            bytes\n",
        );
        assert_eq!(bound_of(&[MEMORY, limits]), bounded(1 << 30, "address space (ulimit -v)"));
    }

    #[test]
    fn malformed_files_bound_nothing() {
        for (path, text) in [
            ("/proc/self/cgroup", "nonsense\n0:\n:::\n"),
            ("/proc/self/cgroup", "0::/../other\n"),
            ("/proc/self/mountinfo", "1 2 3\n - cgroup2\n1 2 3 / - cgroup2 x\n"),
            ("/sys/fs/cgroup/memory.max", "-1\n"),
            ("/sys/fs/cgroup/memory.max", "18446744073709551616\n"),
            ("/proc/self/limits", "Max address space\n"),
        ] {
            let files = [MEMORY, MOUNTED_V2, ("/proc/self/cgroup", "0::/\n"), (path, text)];
            assert_eq!(bound_of(&files), bounded(16 << 30, "physical memory"), "{path}: {text:?}");
        }
        for text in
            ["", "MemTotal: 12", "MemTotal: x kB", "MemTotal: -1 kB", "MemTotal: 18446744073709551615 kB"]
        {
            assert_eq!(bound_of(&[("/proc/meminfo", text)]), None, "{text:?}");
        }
    }
}
