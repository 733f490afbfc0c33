//! One device and its properties.

use bfc_core::{Amount, Bytes};
use highwater_tracking::UsableMemory;
use serde::Serialize;

/// One device. Unknown properties are omitted.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Device {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cores: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    /// The limit of the CPU's memory, such as a cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bound: Option<String>,
    /// The default limit of the device's pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool_limit_bytes: Option<u64>,
    /// The origin of that limit.
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
    /// The device compiler, or the reason why it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compiler: Option<String>,
    /// How the device multiplies matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) products: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`, which selects and renumbers devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) visible_devices: Option<String>,
    /// The default allocator of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocator: Option<String>,
    /// Why the device is incomplete or does not compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// Whether it passed the self-check.
    #[serde(skip)]
    pub(crate) computes: bool,
    pub(crate) usable_for: &'static str,
}

/// A kind of device that this machine lacks.
#[derive(Debug, Serialize)]
pub(crate) struct Unavailable {
    pub(crate) kind: &'static str,
    pub(crate) reason: String,
}

impl Device {
    /// Sets the limit of the CPU's pool: from the environment, or the usable memory less a reserve.
    pub(super) fn set_pool_limit(&mut self, usable: Option<&UsableMemory>, chosen: Option<Amount>) {
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

    /// The known properties as names and values.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
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
