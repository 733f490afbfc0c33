//! Snapshots of PyTorch's memory: reports, and replays with other settings.

mod variations;

pub use variations::pytorch_variations;
