//! The categories of a snapshot's blocks.

use bfc_core::Category;

use super::collect::Life;
use super::stacks::Stacks;

/// Returns the category of each block.
pub(super) fn categories(lives: &[Life], _stacks: &Stacks) -> Vec<Category> {
    vec![Category::Temporary; lives.len()]
}
