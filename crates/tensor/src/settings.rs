//! The settings of runtimes, and the list of all settings of programs with tensors.

use bfc_core::setting::{Setting, SettingKind, SettingScope};

/// The variable of [`UPDATE_GOLDEN`].
pub(crate) const UPDATE_VARIABLE: &str = "HIGHWATER_UPDATE_GOLDEN";

/// The number of compute threads: [`RuntimeBuilder::threads`](crate::RuntimeBuilder::threads).
pub const THREADS: Setting = Setting {
    name: "threads",
    variable: Some("HIGHWATER_THREADS"),
    option: Some("--threads"),
    scope: SettingScope::Run,
    kind: SettingKind::Number { least: 1, most: 1024, unit: "" },
    default: "one per core that the process may use",
    help: "Compute threads; the results do not depend on their number",
    example: "4",
};

/// Matrix products in TF32: [`RuntimeBuilder::tf32`](crate::RuntimeBuilder::tf32).
pub const TF32: Setting = Setting {
    name: "tf32",
    variable: Some("HIGHWATER_TF32"),
    option: Some("--tf32"),
    scope: SettingScope::Run,
    kind: SettingKind::Switch,
    default: "off",
    help: "Whether GPUs may round the factors of f32 matrix products to TF32, which is faster",
    example: "on",
};

/// Writes the files of [`assert_golden!`](crate::assert_golden).
pub const UPDATE_GOLDEN: Setting = Setting {
    name: "update_golden",
    variable: Some(UPDATE_VARIABLE),
    option: None,
    scope: SettingScope::Test,
    kind: SettingKind::Switch,
    default: "off",
    help: "Whether assert_golden! writes its files instead of comparing them, also in your tests",
    example: "on",
};

/// The folder of published models for the tests of highwater-models that cargo ignores by default.
pub const MODELS: Setting = Setting {
    name: "models",
    variable: Some("HIGHWATER_MODELS"),
    option: None,
    scope: SettingScope::Test,
    kind: SettingKind::Path,
    default: "unset",
    help: "The folder of published models for cargo test -p highwater-models --test pretrained, which scripts/check-models writes",
    example: "target/models",
};

/// The settings of this crate.
pub const SETTINGS: &[Setting] = &[THREADS, TF32, UPDATE_GOLDEN, MODELS];

/// Returns the settings of programs with tensors: those of pools, kernels, CUDA and this crate.
///
/// ```
/// use highwater::tensor::settings;
/// assert!(settings().iter().any(|setting| setting.variable == Some("HIGHWATER_POOL_LIMIT")));
/// ```
#[must_use]
pub fn settings() -> Vec<Setting> {
    let lists = [
        bfc_core::setting::SETTINGS,
        SETTINGS,
        highwater_kernels::SETTINGS,
        #[cfg(feature = "cuda")]
        bfc_cuda::SETTINGS,
    ];
    lists.concat()
}
