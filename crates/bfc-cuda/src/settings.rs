//! The settings of this crate: files of NVIDIA's libraries.

use bfc_core::setting::{Setting, SettingKind, SettingScope};

/// The file of the CUDA compiler.
pub const NVRTC: Setting = Setting {
    name: "nvrtc",
    variable: Some("HIGHWATER_NVRTC"),
    option: None,
    scope: SettingScope::Process,
    kind: SettingKind::Path,
    default: "a search",
    help: "The file of the CUDA compiler, read when a device is first used",
    example: "/opt/cuda/lib64/libnvrtc.so.12",
};

/// The file of cuBLAS.
pub const CUBLAS: Setting = Setting {
    name: "cublas",
    variable: Some("HIGHWATER_CUBLAS"),
    option: None,
    scope: SettingScope::Process,
    kind: SettingKind::Path,
    default: "a search",
    help: "The file of cuBLAS, read when a device is first used",
    example: "/opt/cuda/lib64/libcublas.so.12",
};

/// The file of NCCL.
pub const NCCL: Setting = Setting {
    name: "nccl",
    variable: Some("HIGHWATER_NCCL"),
    option: None,
    scope: SettingScope::Process,
    kind: SettingKind::Path,
    default: "a search",
    help: "The file of NCCL, read when several GPUs connect",
    example: "/opt/nccl/lib/libnccl.so.2",
};

/// The settings of this crate.
pub const SETTINGS: &[Setting] = &[NVRTC, CUBLAS, NCCL];
