//! `highwater devices`: lists the devices, their use, and why some are unavailable.

mod cpu;
mod cuda;
mod device;

use std::fmt;
use std::io;

use bfc_core::{DeviceId, DeviceKind, Environment, printable};
use highwater_tensor::settings;
use highwater_tracking::UsableMemory;
use serde::Serialize;

use crate::files::output::print;
use device::{Device, Unavailable};

/// Prints the devices of this machine.
pub(crate) fn run(json: bool) -> io::Result<()> {
    let inventory = Inventory::take();
    print(&inventory, json, || format!("{inventory}\n"))
}

/// All devices, and the kinds that are unavailable.
#[derive(Debug, Serialize)]
struct Inventory {
    devices: Vec<Device>,
    unavailable: Vec<Unavailable>,
}

impl Inventory {
    /// Lists the devices of this machine.
    fn take() -> Self {
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
                environment.unknown(&settings()).iter().for_each(|unknown| eprintln!("warning: {unknown}"));
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

/// Sets what each device is usable for, and which one a runtime chooses by default.
fn choose(devices: &mut [Device], wanted: Option<DeviceId>) {
    let gpu = DeviceId::new(DeviceKind::Cuda, 0).to_string();
    let computes = devices.iter().any(|device| device.computes && device.id == gpu);
    let automatic = if computes { gpu } else { DeviceId::CPU.to_string() };
    let chosen = wanted.map_or(automatic, |wanted| wanted.to_string());
    for device in devices {
        device.usable_for = match (device.computes, device.id == chosen, wanted) {
            (false, ..) => "nothing",
            (true, false, _) => "every op, on request",
            (true, true, None) => "every op; chosen automatically",
            (true, true, Some(_)) => "every op; chosen by HIGHWATER_DEVICE",
        };
    }
}

impl fmt::Display for Inventory {
    /// One paragraph per device with aligned values; no newline at the end.
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
                write!(f, "\n  {name:<width$}  {}", printable(value))?;
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
            usable_for: "every op, on request",
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
  usable for        every op, on request

cuda
  not available     no CUDA device
  usable for        nothing";
        assert_eq!(inventory.to_string(), expected);
    }

    #[test]
    fn the_chosen_device_and_unusable_devices_are_marked() {
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
        let (automatic, asked) = ("every op; chosen automatically", "every op, on request");
        assert_eq!(uses(&["cpu:0"], None), [automatic, "nothing", "nothing"]);
        assert_eq!(uses(&["cpu:0", "cuda:0", "cuda:1"], None), [asked, automatic, asked]);
        assert_eq!(uses(&["cpu:0", "cuda:1"], None), [automatic, "nothing", asked]);
        let by_user = "every op; chosen by HIGHWATER_DEVICE";
        assert_eq!(uses(&["cpu:0", "cuda:0"], Some("cpu")), [by_user, asked, "nothing"]);
    }
}
