//! Properties of the CPU.

use std::fs;
use std::num::NonZero;
use std::thread;

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The model if known, else the architecture.
pub(crate) fn name() -> String {
    let architecture = std::env::consts::ARCH.to_owned();
    fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model(&text)).unwrap_or(architecture)
}

/// The vector instruction sets of this processor that kernels use.
pub(crate) fn instruction_sets() -> Vec<&'static str> {
    // The standard library's macros take literals, hence this one.
    #[allow(unused_macros, reason = "on other architectures there is nothing to ask")]
    macro_rules! detected {
        ($detect:ident: $($name:tt)*) => {
            [$(($name, std::arch::$detect!($name))),*]
                .into_iter()
                .filter_map(|(name, present)| present.then_some(name))
                .collect()
        };
    }
    #[cfg(target_arch = "x86_64")]
    return detected!(is_x86_feature_detected:
        "sse2" "sse4.2" "avx" "f16c" "fma" "avx2"
        "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni" "avx512bf16" "avx512fp16");
    #[cfg(target_arch = "aarch64")]
    return detected!(is_aarch64_feature_detected: "neon" "fp16" "dotprod" "i8mm" "bf16" "sve" "sve2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Vec::new()
}

/// The first processor's model in the text of `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> Option<String> {
    let (_, model) = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")?;
    // Some models are padded with spaces inside.
    Some(model.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read_from_the_first_processor() {
        let text =
            "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some   CPU @ 2.00GHz\n\nmodel name\t: Other\n";
        assert_eq!(model(text).as_deref(), Some("Some CPU @ 2.00GHz"));
        assert_eq!(model("processor : 0\n"), None);
    }

    #[test]
    fn every_processor_has_a_core_and_its_baseline_features() {
        assert!(cores() >= 1);
        if cfg!(target_arch = "x86_64") {
            assert!(instruction_sets().contains(&"sse2"));
        }
    }
}
