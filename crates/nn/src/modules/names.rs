//! The names of the layers in a `Sequential`: each path names one parameter, buffer or random generator.
//!
//! Two layers can share a path only if one name continues the other after a dot: `b.weight` in layer `a`, and `weight`
//! in layer `a.b`. So most names need no visit to any layer, and building a sequence takes linear time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::module::Module;
use super::parts::PartRef;
use super::sequential::Layer;

/// The used names of a sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// The layers by name.
    taken: HashMap<String, UsedName>,
    /// All prefixes of these names that end before a dot.
    prefixes: HashSet<String>,
}

#[derive(Clone, Copy, Debug)]
struct UsedName {
    /// The index of the layer.
    layer: usize,
    /// The next number to try as a suffix of this name, from 2 on.
    next: usize,
}

impl Names {
    /// Reserves a name for the next layer: the given name, or the first unused one with a number appended.
    pub(super) fn take(&mut self, name: &str, module: &dyn Module, layers: &[Arc<Layer>]) -> String {
        // Scopes and paths omit empty parts.
        let parts: Vec<&str> = name.split('.').filter(|part| !part.is_empty()).collect();
        let name = if parts.is_empty() { "layer".to_owned() } else { parts.join(".") };
        let name = self.free(name, module, layers);
        for (dot, _) in name.match_indices('.') {
            self.prefixes.insert(name[..dot].to_owned());
        }
        self.taken.insert(name.clone(), UsedName { layer: layers.len(), next: 2 });
        name
    }

    /// Returns the name itself, or the first unused one with a number appended.
    fn free(&mut self, name: String, module: &dyn Module, layers: &[Arc<Layer>]) -> String {
        if self.is_free(&name, module, layers) {
            return name;
        }
        let first = self.taken.get(&name).map_or(2, |taken| taken.next);
        let mut all_taken = true;
        // Each layer and each path excludes at most one candidate.
        for number in first.. {
            let candidate = format!("{name}{number}");
            if self.is_free(&candidate, module, layers) {
                return candidate;
            }
            all_taken &= self.taken.contains_key(&candidate);
            if all_taken && let Some(taken) = self.taken.get_mut(&name) {
                taken.next = number + 1;
            }
        }
        name
    }

    /// Whether no layer has this name, and all paths below it are new.
    fn is_free(&self, name: &str, module: &dyn Module, layers: &[Arc<Layer>]) -> bool {
        if self.taken.contains_key(name) {
            return false;
        }
        let above = name.match_indices('.').filter_map(|(dot, _)| self.taken.get(&name[..dot]));
        let mut related: Vec<usize> = above.map(|taken| taken.layer).collect();
        if self.prefixes.contains(name) {
            let is_below = |other: &str| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            let below = layers.iter().enumerate().filter(|(_, other)| is_below(&other.name));
            related.extend(below.map(|(layer, _)| layer));
        }
        if related.is_empty() {
            return true;
        }
        let mut paths = HashSet::new();
        for Layer { name, module, .. } in related.into_iter().map(|layer| &*layers[layer]) {
            visit_paths(module, name, &mut |path| {
                paths.insert(path.to_owned());
            });
        }
        let mut leads_to_new = true;
        visit_paths(module, name, &mut |path| leads_to_new &= !paths.contains(path));
        leads_to_new
    }
}

/// Visits the paths of all parameters, buffers and random generators of a layer with this name.
fn visit_paths(module: &dyn Module, name: &str, show: &mut dyn FnMut(&str)) {
    module.walk(&mut |path, part| match part {
        PartRef::Module(_) => {}
        PartRef::Parameter(_) | PartRef::Buffer(_) | PartRef::Rng(_) => show(&format!("{name}.{path}")),
    });
}
