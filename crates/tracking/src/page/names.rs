//! The paths of owners, stored once and referred to by index.

use std::collections::HashMap;

use crate::record::Recording;

/// The paths of the owners on the page.
#[derive(Debug)]
pub(super) struct Names<'a> {
    recording: &'a Recording,
    numbers: HashMap<u32, u32>,
    paths: Vec<String>,
}

impl<'a> Names<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        Self { recording, numbers: HashMap::new(), paths: Vec::new() }
    }

    /// Returns the index of an owner's path.
    pub(super) fn number(&mut self, owner: u32) -> u32 {
        *self.numbers.entry(owner).or_insert_with(|| {
            self.paths.push(self.recording.owner_path(owner));
            (self.paths.len() - 1) as u32
        })
    }

    /// Returns all paths by index.
    pub(super) fn into_paths(self) -> Vec<String> {
        self.paths
    }
}
