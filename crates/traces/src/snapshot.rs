//! PyTorch's allocator, explained from a snapshot: the report, and the settings to try.

mod report;
mod variations;

pub use report::{
    AllocatorReport, AnnotationRow, FreeBytes, GapCauses, GapMoment, MemoryLevel, SegmentKeeper,
    SettingsAdvice, SettingsRow, SingleBlockSegments, SnapshotReport, StreamMemory,
};
pub use variations::setting_variations;
