//! Module names that cache their lookup.

use std::sync::OnceLock;

use bfc_core::OwnerId;

use super::{ModuleGuard, ScopePath, here, module};

/// A module name that caches its lookup, for layers that enter their module in every step.
///
/// Entering it again below the same parent takes no lookup.
///
/// ```
/// use highwater_tracking::{ModuleName, here};
/// let layer = ModuleName::new("encoder.block0");
/// for _ in 0..2 {
///     let _scope = layer.enter();
///     assert_eq!(here().module.path(), "encoder.block0");
/// }
/// ```
#[derive(Debug)]
pub struct ModuleName {
    name: Box<str>,
    /// The first parent that the name was entered in, and the resulting module.
    known: OnceLock<(OwnerId, OwnerId)>,
}

impl ModuleName {
    /// Creates a name. A name with dots means several nested modules, as for [`module`].
    #[must_use]
    pub fn new(name: impl Into<Box<str>>) -> Self {
        Self { name: name.into(), known: OnceLock::new() }
    }

    /// Returns the name.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        &self.name
    }

    /// Enters the module of this name below the current one until the guard is dropped.
    pub fn enter(&self) -> ModuleGuard {
        let place = here();
        match self.known.get() {
            Some(&(parent, module)) if parent == place.module => ScopePath { module, ..place }.enter(),
            _ => self.look_up(place),
        }
    }

    #[cold]
    fn look_up(&self, place: ScopePath) -> ModuleGuard {
        let guard = module(&self.name);
        // Only the first parent is cached, because a module rarely has several.
        let _ = self.known.set((place.module, here().module));
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{Phase, phase};

    #[test]
    fn a_name_leads_to_the_module_below_wherever_it_is_entered() {
        let name = ModuleName::new("scope-name.fc1");
        for outer in ["", "scope-other", "", "scope-other", "scope-third"] {
            let _outer = module(outer);
            let _phase = phase(Phase::Optimizer);
            let before = here();
            let guard = name.enter();
            let expected = if outer.is_empty() {
                name.as_str().to_owned()
            } else {
                format!("{outer}.{}", name.as_str())
            };
            assert_eq!((here().module.path(), here().phase), (expected, Phase::Optimizer));
            drop(guard);
            assert_eq!(here(), before);
        }
    }
}
