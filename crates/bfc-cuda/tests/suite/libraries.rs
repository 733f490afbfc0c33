//! Tests the choice among CUDA libraries, and the errors without one, on the emulated driver.

use bfc_cuda::{
    Compute, ComputeError, CudaDriver, CudaUnavailable, LibraryProblem, SelfCheckError, probe, self_check,
};

use crate::emulated_driver::{EmulatedDriver, expected, on_emulated_driver};
use crate::open;

/// The libraries that were tried, except those that the system does not find.
fn problems(error: &ComputeError) -> Vec<String> {
    let (ComputeError::NoCompiler { tried } | ComputeError::NoProducts { tried }) = error else {
        panic!("{error:?}")
    };
    let missing = |problem: &LibraryProblem| matches!(problem, LibraryProblem::NotLoaded { .. });
    tried.iter().filter(|tried| !missing(&tried.problem)).map(ToString::to_string).collect()
}

#[test]
fn the_newest_library_that_supports_the_device_is_used() {
    if let Some(expected) = expected() {
        let (_, compute) = open();
        let (compiler, products) = (compute.compiler().unwrap(), compute.products().unwrap());
        let found = format!("{} {}", compiler.version().0, products.version() / 10_000);
        assert_eq!(found, expected, "{} {}", compiler.file(), products.file());
        return;
    }
    let run = |driver: &EmulatedDriver, expected, capability, version| {
        driver.run(expected, &[("EMULATED_CAPABILITY", capability), ("EMULATED_VERSION", version)]);
    };
    let test = "the_newest_library_that_supports_the_device_is_used";
    let both = EmulatedDriver::new(test).with_toolkit("12");
    run(&both, "13 13", "90", "13000");
    // CUDA 13 does not support the V100, and a CUDA 12 driver does not support CUDA 13.
    run(&both, "12 12", "70", "13000");
    run(&both, "12 12", "90", "12040");
    // For a newer device, its driver compiles the PTX of the newest library.
    run(&both, "13 13", "120", "13000");
    run(&both, "12 12", "120", "12000");
    let old = EmulatedDriver::without_toolkit(test, &[]).with_toolkit("12");
    run(&old, "12 12", "90", "13000");
}

#[test]
fn libraries_that_do_not_suit_are_told_with_the_reason_for_each() {
    if let Some(expected) = expected() {
        let (_, compute) = open();
        let (compiler, products) = (compute.compiler().unwrap_err(), compute.products().unwrap_err());
        let told = [problems(&compiler), problems(&products)].concat().join("\n");
        assert_eq!(told, expected);
        assert!(!compute.supports_products());
        return;
    }
    let driver = EmulatedDriver::new("libraries_that_do_not_suit_are_told_with_the_reason_for_each");
    let files = ["libnvrtc.so.13", "libcublas.so.13"].map(|file| driver.path(file));
    // Named by the user, so that other libraries of the machine are ignored.
    let run = |reason: &str, capability, version| {
        let [nvrtc, cublas] = &files;
        let expected = format!("HIGHWATER_NVRTC={nvrtc}: {reason}\nHIGHWATER_CUBLAS={cublas}: {reason}");
        let variables = [
            ("HIGHWATER_NVRTC", nvrtc.as_str()),
            ("HIGHWATER_CUBLAS", cublas.as_str()),
            ("EMULATED_CAPABILITY", capability),
            ("EMULATED_VERSION", version),
        ];
        driver.run(&expected, &variables);
    };
    run("version 13.0 does not know devices of sm_70", "70", "13000");
    run("of CUDA 13, but the driver is for CUDA 12.4", "90", "12040");
}

#[test]
fn without_a_compiler_the_error_lists_the_candidates() {
    on_emulated_driver(&[("HIGHWATER_NVRTC", "/nowhere/libnvrtc.so")], || {
        let (driver, compute) = open();
        let Err(SelfCheckError::Compute(error @ ComputeError::NoCompiler { .. })) =
            self_check(&driver, &compute)
        else {
            panic!("it computes")
        };
        assert!(error.to_string().contains("HIGHWATER_NVRTC=/nowhere/libnvrtc.so: cannot open"), "{error}");
    });
}

#[test]
fn without_a_library_for_products_a_kernel_multiplies() {
    on_emulated_driver(&[("HIGHWATER_CUBLAS", "/nowhere/libcublas.so")], || {
        let (driver, compute) = open();
        assert_eq!(self_check(&driver, &compute), Ok(()));
        assert!(!compute.supports_products());
        let error = compute.products().unwrap_err();
        assert!(error.to_string().contains("HIGHWATER_CUBLAS=/nowhere/libcublas.so: cannot open"), "{error}");
    });
}

#[test]
fn a_library_that_fails_to_start_is_retried_ever_more_rarely() {
    on_emulated_driver(&[("EMULATED_CUBLAS_FAILURES", "3")], || {
        let (_, compute) = open();
        let error = compute.products().unwrap_err();
        assert!(problems(&error)[0].contains("cublasCreate: "), "{error}");
        // It fails at the first request, after one more and after two more, and starts after four more.
        let starts: Vec<bool> = (0..12).map(|_| compute.supports_products()).collect();
        assert_eq!(starts.iter().position(|&has| has), Some(9), "{starts:?}");
        assert!(compute.products().is_ok());
    });
}

#[test]
fn a_driver_that_is_too_old_is_told_with_what_it_supports() {
    on_emulated_driver(&[("EMULATED_VERSION", "11080")], || {
        let error = probe().unwrap_err();
        assert!(matches!(error, CudaUnavailable::TooOld { .. }));
        let expected = "the CUDA driver is too old: it supports CUDA 11.8, but 12.0 is required";
        assert_eq!(error.to_string(), expected);
        assert_eq!(CudaDriver::new(0).err(), Some(error));
    });
}

#[test]
fn wrong_numbers_are_found_out() {
    on_emulated_driver(&[("EMULATED_WRONG_SUMS", "1")], || {
        let (driver, compute) = open();
        let error = self_check(&driver, &compute).unwrap_err();
        assert!(matches!(error, SelfCheckError::WrongResult { what: "sum", .. }), "{error}");
    });
}
