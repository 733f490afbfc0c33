//! Tests the choice among CUDA libraries, and the errors without one, on a fake driver.

use std::sync::Arc;

use bfc_core::Stream;
use bfc_cuda::{
    Compute, ComputeError, CudaDriver, CudaUnavailable, LibraryProblem, SelfCheckError, StreamCompute, probe,
    self_check,
};

use crate::harness::{Fake, expected};

const TARGET: &str = env!("CARGO_TARGET_TMPDIR");

fn open() -> (Arc<CudaDriver>, StreamCompute) {
    let driver = CudaDriver::new(0).unwrap();
    let stream = Stream::new(driver.clone()).unwrap();
    (driver.clone(), StreamCompute::new(driver, stream).unwrap())
}

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
    let run = |fake: &Fake, expected, capability, version| {
        let test = "the_newest_library_that_supports_the_device_is_used";
        fake.run(test, expected, &[("FAKE_CUDA_CAPABILITY", capability), ("FAKE_CUDA_VERSION", version)]);
    };
    let both = Fake::driver(TARGET, "both").with_libraries_of("13").with_libraries_of("12");
    run(&both, "13 13", "90", "13000");
    // CUDA 13 does not support the V100, and a CUDA 12 driver does not support CUDA 13.
    run(&both, "12 12", "70", "13000");
    run(&both, "12 12", "90", "12040");
    // For a newer device, its driver compiles the PTX of the newest library.
    run(&both, "13 13", "120", "13000");
    run(&both, "12 12", "120", "12000");
    let old = Fake::driver(TARGET, "only_12").with_libraries_of("12");
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
    let fake = Fake::driver(TARGET, "only_13").with_libraries_of("13");
    let files = ["libnvrtc.so.13", "libcublas.so.13"].map(|file| fake.path(file));
    // Named by the user, so that other libraries of the machine are ignored.
    let run = |reason: &str, capability, version| {
        let [nvrtc, cublas] = &files;
        let expected = format!("HIGHWATER_NVRTC={nvrtc}: {reason}\nHIGHWATER_CUBLAS={cublas}: {reason}");
        let variables = [
            ("HIGHWATER_NVRTC", nvrtc.as_str()),
            ("HIGHWATER_CUBLAS", cublas.as_str()),
            ("FAKE_CUDA_CAPABILITY", capability),
            ("FAKE_CUDA_VERSION", version),
        ];
        fake.run("libraries_that_do_not_suit_are_told_with_the_reason_for_each", &expected, &variables);
    };
    run("version 13.0 does not know devices of sm_70", "70", "13000");
    run("of CUDA 13, but the driver is for CUDA 12.4", "90", "12040");
}

#[test]
fn without_a_compiler_the_error_lists_the_candidates() {
    if expected().is_some() {
        let (driver, compute) = open();
        let Err(SelfCheckError::Compute(error @ ComputeError::NoCompiler { .. })) =
            self_check(&driver, &compute)
        else {
            panic!("it computes")
        };
        assert!(error.to_string().contains("HIGHWATER_NVRTC=/nowhere/libnvrtc.so: cannot open"), "{error}");
        return;
    }
    let fake = Fake::whole(TARGET, "no_compiler");
    let test = "without_a_compiler_the_error_lists_the_candidates";
    fake.run(test, "", &[("HIGHWATER_NVRTC", "/nowhere/libnvrtc.so")]);
}

#[test]
fn without_a_library_for_products_a_kernel_multiplies() {
    if expected().is_some() {
        let (driver, compute) = open();
        assert_eq!(self_check(&driver, &compute), Ok(()));
        assert!(!compute.supports_products());
        let error = compute.products().unwrap_err();
        assert!(error.to_string().contains("HIGHWATER_CUBLAS=/nowhere/libcublas.so: cannot open"), "{error}");
        return;
    }
    let fake = Fake::whole(TARGET, "no_products");
    let test = "without_a_library_for_products_a_kernel_multiplies";
    fake.run(test, "", &[("HIGHWATER_CUBLAS", "/nowhere/libcublas.so")]);
}

#[test]
fn a_library_that_fails_to_start_is_retried_ever_more_rarely() {
    if expected().is_some() {
        let (_, compute) = open();
        let error = compute.products().unwrap_err();
        assert!(problems(&error)[0].contains("cublasCreate: "), "{error}");
        // It fails at the first request, after one more and after two more, and starts after four more.
        let starts: Vec<bool> = (0..12).map(|_| compute.supports_products()).collect();
        assert_eq!(starts.iter().position(|&has| has), Some(9), "{starts:?}");
        assert!(compute.products().is_ok());
        return;
    }
    let fake = Fake::whole(TARGET, "failing_products");
    let test = "a_library_that_fails_to_start_is_retried_ever_more_rarely";
    fake.run(test, "", &[("FAKE_CUBLAS_FAILS", "3")]);
}

#[test]
fn a_driver_that_is_too_old_is_told_with_what_it_supports() {
    if let Some(expected) = expected() {
        let error = probe().unwrap_err();
        assert!(matches!(error, CudaUnavailable::TooOld { .. }));
        assert_eq!(error.to_string(), expected);
        assert_eq!(CudaDriver::new(0).err(), Some(error));
        return;
    }
    let fake = Fake::driver(TARGET, "old_driver");
    let test = "a_driver_that_is_too_old_is_told_with_what_it_supports";
    let expected = "the CUDA driver is too old: it supports CUDA 11.8, but 12.0 is required";
    fake.run(test, expected, &[("FAKE_CUDA_VERSION", "11080")]);
}

#[test]
fn wrong_numbers_are_found_out() {
    if expected().is_some() {
        let (driver, compute) = open();
        let error = self_check(&driver, &compute).unwrap_err();
        assert!(matches!(error, SelfCheckError::WrongResult { what: "sum", .. }), "{error}");
        return;
    }
    let fake = Fake::whole(TARGET, "wrong_numbers");
    fake.run("wrong_numbers_are_found_out", "", &[("FAKE_CUDA_WRONG", "1")]);
}
