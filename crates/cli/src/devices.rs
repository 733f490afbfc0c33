//! `highwater devices`: what there is, what it is good for, and why something is missing.

use std::fmt;

use bfc_core::{Amount, Bytes, DeviceId, DeviceKind, Environment};
use highwater_tracking::UsableMemory;
use serde::Serialize;

use crate::{cpu, cuda};

/// All devices, and the kinds of which there is none.
#[derive(Debug, Serialize)]
pub(crate) struct Inventory {
    pub(crate) devices: Vec<Device>,
    pub(crate) unavailable: Vec<Unavailable>,
}

/// One device. What does not apply to it, or is not known, is left out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Device {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cores: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    /// What bounds the memory of the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bound: Option<String>,
    /// The most that a pool of the device takes, where nothing in the program says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool_limit_bytes: Option<u64>,
    /// Where that limit comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool_limit_origin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instruction_sets: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) driver: Option<String>,
    /// The compiler for the device, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compiler: Option<String>,
    /// Who multiplies matrices on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) products: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`, which hides and renumbers devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) visible_devices: Option<String>,
    /// How a runtime hands out the device's memory, where nothing in the program says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocator: Option<String>,
    /// Why the device did not answer all questions, or does not compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// Whether it has shown that it computes.
    #[serde(skip)]
    pub(crate) computes: bool,
    pub(crate) usable_for: &'static str,
}

/// A kind of device of which there is none.
#[derive(Debug, Serialize)]
pub(crate) struct Unavailable {
    pub(crate) kind: &'static str,
    pub(crate) reason: String,
}

impl Inventory {
    /// Looks at this machine.
    pub(crate) fn take() -> Self {
        let usable = UsableMemory::of_this_process();
        let mut cpu = Device {
            id: DeviceId::CPU.to_string(),
            name: cpu::name(),
            cores: Some(cpu::cores()),
            memory_bytes: usable.as_ref().map(|usable| usable.bytes.get()),
            memory_bound: usable.as_ref().map(|usable| usable.bound.to_string()),
            instruction_sets: Some(cpu::instruction_sets()),
            computes: true,
            ..Device::default()
        };
        let mut wanted = None;
        match Environment::read() {
            Ok(environment) => {
                environment.unknown().iter().for_each(|unknown| eprintln!("warning: {unknown}"));
                let chosen = environment.settings().options(DeviceId::CPU);
                cpu.allocator = Some(chosen.allocator.unwrap_or_default().to_string());
                cpu.set_pool_limit(usable.as_ref(), chosen.limit);
                wanted = environment.device();
            }
            Err(error) => cpu.problem = Some(error.to_string()),
        }
        let mut devices = vec![cpu];
        let mut unavailable = Vec::new();
        match cuda::devices() {
            Ok(found) => devices.extend(found),
            Err(reason) => unavailable.push(reason),
        }
        choose(&mut devices, wanted);
        Self { devices, unavailable }
    }
}

/// Says of each device what it is usable for, and which one a runtime chooses where a program leaves that open.
fn choose(devices: &mut [Device], wanted: Option<DeviceId>) {
    let gpu = DeviceId::new(DeviceKind::Cuda, 0).to_string();
    let computes = devices.iter().any(|device| device.computes && device.id == gpu);
    let automatic = if computes { gpu } else { DeviceId::CPU.to_string() };
    let chosen = wanted.map_or(automatic, |wanted| wanted.to_string());
    for device in devices {
        device.usable_for = match (device.computes, device.id == chosen, wanted) {
            (false, ..) => "nothing",
            (true, false, _) => "every op, when asked for",
            (true, true, None) => "every op; chosen automatically",
            (true, true, Some(_)) => "every op; chosen by HIGHWATER_DEVICE",
        };
    }
}

impl Device {
    /// Notes the limit of the CPU's pool: what the environment chooses, or what the process may use less a reserve.
    fn set_pool_limit(&mut self, usable: Option<&UsableMemory>, chosen: Option<Amount>) {
        let limit = match (chosen, usable) {
            (Some(Amount::Bytes(bytes)), _) => Some((bytes, "HIGHWATER_POOL_LIMIT".to_owned())),
            (Some(share), Some(usable)) => Some((share.of(usable.bytes), "HIGHWATER_POOL_LIMIT".to_owned())),
            (None, Some(usable)) => Some((usable.pool_limit(), usable.limit_origin())),
            (_, None) => None,
        };
        if let Some((bytes, origin)) = limit {
            (self.pool_limit_bytes, self.pool_limit_origin) = (Some(bytes.get()), Some(origin));
        }
    }

    /// The device's properties that are known, as names and values.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        let memory = self.memory_bytes.map(|total| match (self.free_bytes, &self.memory_bound) {
            (Some(free), _) => format!("{}, {} free", bytes(total), bytes(free)),
            (None, Some(bound)) => format!("{}, {bound}", bytes(total)),
            (None, None) => bytes(total),
        });
        let origin = self.pool_limit_origin.as_ref().map_or(String::new(), |origin| format!(", {origin}"));
        let pool_limit = self.pool_limit_bytes.map(|limit| format!("{}{origin}", bytes(limit)));
        let instruction_sets = self.instruction_sets.as_ref().map(|names| match names.as_slice() {
            [] => "none detected".to_owned(),
            names => names.join(" "),
        });
        let rows = [
            ("name", Some(self.name.clone())),
            ("cores", self.cores.map(|cores| cores.to_string())),
            ("memory", memory),
            ("pool limit", pool_limit),
            ("instruction sets", instruction_sets),
            ("compute capability", self.compute_capability.clone()),
            ("driver", self.driver.clone()),
            ("compiler", self.compiler.clone()),
            ("matrix products", self.products.clone()),
            ("CUDA_VISIBLE_DEVICES", self.visible_devices.clone()),
            ("allocator", self.allocator.clone()),
            ("problem", self.problem.clone()),
            ("usable for", Some(self.usable_for.to_owned())),
        ];
        rows.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
    }
}

impl fmt::Display for Inventory {
    /// A paragraph a device, its values in one column throughout; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().map(|device| (device.id.as_str(), device.rows()));
        let unavailable = self.unavailable.iter().map(|kind| {
            let rows = vec![("not available", kind.reason.clone()), ("usable for", "nothing".to_owned())];
            (kind.kind, rows)
        });
        let paragraphs: Vec<_> = devices.chain(unavailable).collect();
        let names = paragraphs.iter().flat_map(|(_, rows)| rows).map(|(name, _)| name.len());
        let width = names.max().unwrap_or(0);
        for (index, (title, rows)) in paragraphs.iter().enumerate() {
            if index > 0 {
                write!(f, "\n\n")?;
            }
            write!(f, "{title}")?;
            for (name, value) in rows {
                write!(f, "\n  {name:<width$}  {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_one_column_and_unknown_ones_are_left_out() {
        let cpu = Device {
            id: "cpu:0".to_owned(),
            name: "Some CPU".to_owned(),
            cores: Some(2),
            instruction_sets: Some(vec!["avx", "fma"]),
            usable_for: "every op",
            ..Device::default()
        };
        let cuda = Device {
            id: "cuda:0".to_owned(),
            name: "Some GPU".to_owned(),
            memory_bytes: Some(2 << 30),
            free_bytes: Some(1 << 30),
            usable_for: "every op, when asked for",
            ..Device::default()
        };
        let other = Unavailable { kind: "cuda", reason: "no CUDA device".to_owned() };
        let inventory = Inventory { devices: vec![cpu, cuda], unavailable: vec![other] };
        let expected = "\
cpu:0
  name              Some CPU
  cores             2
  instruction sets  avx fma
  usable for        every op

cuda:0
  name              Some GPU
  memory            2.00 GiB, 1.00 GiB free
  usable for        every op, when asked for

cuda
  not available     no CUDA device
  usable for        nothing";
        assert_eq!(inventory.to_string(), expected);
    }

    #[test]
    fn the_device_that_is_chosen_says_so_and_one_that_does_not_compute_is_for_nothing() {
        let uses = |computing: &[&str], wanted: Option<&str>| {
            let device = |id: &&str| Device {
                id: (*id).to_owned(),
                computes: computing.contains(id),
                ..Device::default()
            };
            let mut devices: Vec<Device> = ["cpu:0", "cuda:0", "cuda:1"].iter().map(device).collect();
            choose(&mut devices, wanted.map(|wanted| wanted.parse().unwrap()));
            devices.iter().map(|device| device.usable_for).collect::<Vec<_>>()
        };
        let (automatic, asked) = ("every op; chosen automatically", "every op, when asked for");
        assert_eq!(uses(&["cpu:0"], None), [automatic, "nothing", "nothing"]);
        assert_eq!(uses(&["cpu:0", "cuda:0", "cuda:1"], None), [asked, automatic, asked]);
        assert_eq!(uses(&["cpu:0", "cuda:1"], None), [automatic, "nothing", asked]);
        let by_user = "every op; chosen by HIGHWATER_DEVICE";
        assert_eq!(uses(&["cpu:0", "cuda:0"], Some("cpu")), [by_user, asked, "nothing"]);
    }
}
