//! The numbers of the fields of a pprof profile, for its reader and for the exporter.
//!
//! Source: the field numbers in `profile.proto` of the project pprof.

/// The comment of every profile that Highwater exports.
pub(crate) const COMMENT: &str = "granted bytes that were live at the peak";

/// The kind of a module in the system name of a function that Highwater exports: `KIND:NAME`. The kind of an op is its
/// phase.
pub(crate) const MODULE: &str = "module";

/// Fields of a profile.
pub(crate) mod profile {
    pub(crate) const SAMPLE_TYPE: u32 = 1;
    pub(crate) const SAMPLE: u32 = 2;
    pub(crate) const MAPPING: u32 = 3;
    pub(crate) const LOCATION: u32 = 4;
    pub(crate) const FUNCTION: u32 = 5;
    pub(crate) const STRING_TABLE: u32 = 6;
    pub(crate) const TIME_NANOS: u32 = 9;
    pub(crate) const COMMENT: u32 = 13;
    pub(crate) const DEFAULT_SAMPLE_TYPE: u32 = 14;
    /// The fields that are messages; the last one is the type of the period.
    pub(crate) const MESSAGES: [u32; 6] = [SAMPLE_TYPE, SAMPLE, MAPPING, LOCATION, FUNCTION, 11];
    /// The fields that are numbers: frames to drop and to keep, the time, the duration, the period, the default type and
    /// the address of documentation.
    pub(crate) const NUMBERS: [u32; 7] = [7, 8, TIME_NANOS, 10, 12, DEFAULT_SAMPLE_TYPE, 15];
}
/// Fields of a value type.
pub(crate) mod value_type {
    pub(crate) const TYPE: u32 = 1;
    pub(crate) const UNIT: u32 = 2;
}
/// Fields of a sample.
pub(crate) mod sample {
    pub(crate) const LOCATION_ID: u32 = 1;
    pub(crate) const VALUE: u32 = 2;
    pub(crate) const LABEL: u32 = 3;
}
/// Fields of a label of a sample.
pub(crate) mod label {
    pub(crate) const KEY: u32 = 1;
    pub(crate) const TEXT: u32 = 2;
}
/// Fields of a location and of its line.
pub(crate) mod location {
    pub(crate) const ID: u32 = 1;
    pub(crate) const MAPPING_ID: u32 = 2;
    pub(crate) const LINE: u32 = 4;
    pub(crate) const LINE_FUNCTION_ID: u32 = 1;
}
/// Fields of a function.
pub(crate) mod function {
    pub(crate) const ID: u32 = 1;
    pub(crate) const NAME: u32 = 2;
    pub(crate) const SYSTEM_NAME: u32 = 3;
    pub(crate) const FILENAME: u32 = 4;
}
