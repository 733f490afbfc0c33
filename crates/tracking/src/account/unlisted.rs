//! Layers that run but that no walk through a model has listed, so that no path names their memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bfc_core::OwnerId;
use bfc_core::sync::{self, Mutex};

/// The most layers that a tracker notes.
const MAX_NOTED: usize = 64;

/// The unlisted layers of a tracker, by the address of their weight.
#[derive(Debug, Default)]
pub(crate) struct UnlistedLayers {
    /// Whether a walk has listed any layer. Until then, a layer may still be listed.
    has_model: AtomicBool,
    layers: Mutex<BTreeMap<usize, String>>,
}

impl UnlistedLayers {
    /// Notes a layer that runs in `module` without a path.
    pub(crate) fn note(&self, weight: usize, module: OwnerId, describe: impl FnOnce() -> String) {
        if !self.has_model.load(Ordering::Relaxed) {
            return;
        }
        let mut layers = sync::lock(&self.layers);
        if layers.len() < MAX_NOTED && !layers.contains_key(&weight) {
            let module = if module == OwnerId::ROOT { "(top)".to_owned() } else { module.path() };
            layers.insert(weight, format!("{} in {module}", describe()));
        }
    }

    /// Removes a layer that a walk has listed.
    pub(crate) fn listed(&self, weight: usize) {
        self.has_model.store(true, Ordering::Relaxed);
        sync::lock(&self.layers).remove(&weight);
    }

    pub(crate) fn all(&self) -> Vec<String> {
        sync::lock(&self.layers).values().cloned().collect()
    }
}
