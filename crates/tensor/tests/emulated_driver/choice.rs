//! The default choice of a device, on an emulated driver that simulates each kind of failure.

use bfc_core::{Bytes, DeviceId, DeviceKind, Environment, SourceError};
use highwater_tensor::cuda::{ComputeError, CudaUnavailable, SelfCheckError};
use highwater_tensor::{DeviceFault, Error, Runtime, Tensor};

use crate::controls::live_objects;
use crate::emulated_driver::{EmulatedDriver, expected, on_emulated_driver};

const CUDA: DeviceId = DeviceId::new(DeviceKind::Cuda, 0);

fn runtime() -> Runtime {
    Runtime::builder().threads(1).build().unwrap()
}

#[test]
fn a_device_that_computes_is_chosen_and_the_same_each_time() {
    if let Some(expected) = expected() {
        let runtime = runtime();
        runtime.tracker().start_log(Bytes::mib(1));
        let choice = runtime.choose(None).unwrap();
        assert_eq!((choice.device.id(), &choice.gpu_error), (CUDA, &None));
        assert!(choice.reason.starts_with(&format!("chosen automatically{expected}")), "{}", choice.reason);
        assert_eq!(choice.reason.len() > 25, !expected.is_empty());
        assert_eq!(runtime.best().unwrap(), choice.device);
        // The self-check changes neither its pool nor the accounts of the runtime.
        assert_eq!(choice.device.memory_stats().unwrap().num_allocs, 0);
        let tensor = Tensor::full(&choice.device, [4], 3.0_f32).unwrap();
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [3.0; 4]);
        // Recordings know the pool's regions, as those of a dry run do.
        let recording = runtime.tracker().take_log();
        assert!(recording.regions().iter().any(|region| region.taken && region.bytes >= 16));
        drop((tensor, choice, runtime));
        assert_eq!(live_objects(), 0);
        return;
    }
    let driver = EmulatedDriver::new("a_device_that_computes_is_chosen_and_the_same_each_time");
    driver.run("", &[]);
    // Without the GEMM library, a kernel multiplies, and the device reports this.
    let missing =
        "; no library for matrix products on CUDA devices (cuBLAS): HIGHWATER_CUBLAS=/nowhere/cublas.so: ";
    driver.run(missing, &[("HIGHWATER_CUBLAS", "/nowhere/cublas.so")]);
}

/// Returns whether `fault` is the failure that the word `what` names.
fn is_wrong(what: &str, fault: &DeviceFault) -> bool {
    match what {
        "no compiler" => {
            matches!(fault, DeviceFault::Check(SelfCheckError::Compute(ComputeError::NoCompiler { .. })))
        }
        "not started" => matches!(fault, DeviceFault::Cuda(CudaUnavailable::Init { call: "cuInit", .. })),
        "too old" => matches!(fault, DeviceFault::Cuda(CudaUnavailable::TooOld { .. })),
        "no context" => matches!(fault, DeviceFault::Cuda(CudaUnavailable::Init { .. })),
        "no room" => matches!(fault, DeviceFault::Compute(ComputeError::OutOfMemory { call: "cuMemAlloc" })),
        "no memory" => {
            matches!(
                fault,
                DeviceFault::Check(SelfCheckError::Compute(ComputeError::OutOfMemory {
                    call: "cuModuleLoadData"
                }))
            )
        }
        "wrong" => matches!(fault, DeviceFault::Check(SelfCheckError::WrongResult { what: "sum", .. })),
        what => panic!("{what}"),
    }
}

#[test]
fn a_device_that_cannot_compute_is_passed_over() {
    if let Some(expected) = expected() {
        let (what, words) = expected.split_once(": ").unwrap();
        let runtime = runtime();
        let before = live_objects();
        for _ in 0..2 {
            let choice = runtime.choose(None).unwrap();
            assert_eq!(choice.device.id(), DeviceId::CPU);
            let Some(Error::NoDevice { device, reason: fault }) = choice.gpu_error else { panic!("{what}") };
            assert!(device == "cuda:0" && is_wrong(what, &fault), "{fault:?}");
            assert!(choice.reason.starts_with("chosen automatically; cuda:0: "), "{}", choice.reason);
            assert!(choice.reason.contains(words), "{}", choice.reason);
        }
        assert_eq!((before, live_objects()), (0, 0));
        assert!(!runtime.registry().devices().contains(&CUDA));
        assert_eq!(runtime.best().unwrap(), runtime.cpu().unwrap());
        return;
    }
    let driver = EmulatedDriver::new("a_device_that_cannot_compute_is_passed_over");
    let run = |expected, variable| driver.run(expected, &[variable]);
    run("no compiler: HIGHWATER_NVRTC=/nowhere/nvrtc.so: ", ("HIGHWATER_NVRTC", "/nowhere/nvrtc.so"));
    run("not started: CUDA_ERROR_STUB_LIBRARY", ("EMULATED_INIT_STATUS", "34"));
    run("too old: it supports CUDA 11.4, but 12.0 is required", ("EMULATED_VERSION", "11040"));
    run("no context: CUDA_ERROR_OUT_OF_MEMORY", ("EMULATED_CONTEXT_STATUS", "2"));
    run("no memory: the device is out of memory", ("EMULATED_CODE_BYTES", "10000000000"));
    run("no room: cuMemAlloc: the device is out of memory", ("EMULATED_MEMORY", "200"));
    run("wrong: sum 0 is ", ("EMULATED_WRONG_SUMS", "1"));
}

/// An explicit request returns the error. A failure does not prevent the next attempt.
#[test]
fn opening_a_broken_device_repeats_the_same_error() {
    on_emulated_driver(&[("EMULATED_MEMORY", "200")], || {
        let runtime = runtime();
        for _ in 0..2 {
            let error = runtime.device(CUDA).unwrap_err();
            let reason = DeviceFault::Compute(ComputeError::OutOfMemory { call: "cuMemAlloc" });
            assert_eq!(error, Error::NoDevice { device: "cuda:0".to_owned(), reason });
        }
        assert_eq!(live_objects(), 0);
    });
}

#[test]
fn the_users_variable_chooses_before_the_automatic_choice() {
    let environment = |device| Environment::from_vars([("HIGHWATER_DEVICE", device)]).unwrap();
    let choose = |device| {
        let builder = Runtime::builder().threads(1).environment(environment(device));
        builder.build().unwrap().choose(None)
    };
    for (device, chosen) in [("cpu", "cpu:0"), ("dry", "dry:0")] {
        let choice = choose(device).unwrap();
        assert_eq!(choice.device.id().to_string(), chosen);
        assert_eq!(choice.reason, "requested by HIGHWATER_DEVICE");
    }
    assert!(
        matches!(choose("cuda:4000").unwrap_err(), Error::NoDevice { device, .. } if device == "cuda:4000")
    );
}

#[test]
fn a_program_may_match_on_why_a_device_did_not_compute() {
    on_emulated_driver(&[("HIGHWATER_NVRTC", "/nowhere/nvrtc.so")], || {
        let device = runtime().device(CUDA).unwrap();
        let error = Tensor::full(&device, [4], 3.0_f32).unwrap_err();
        let Error::Device { reason: DeviceFault::Compute(ComputeError::NoCompiler { tried }), .. } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(tried[0].library, "HIGHWATER_NVRTC=/nowhere/nvrtc.so");
    });
}

#[test]
fn a_lost_device_is_a_typed_error_with_the_first_call() {
    on_emulated_driver(&[("EMULATED_RECORD_STATUS", "700")], || {
        let device = runtime().device(CUDA).unwrap();
        let before = Tensor::full(&device, [4], 3.0_f32).unwrap();
        let uploaded = Tensor::from_slice(&device, &[1.0_f32, 2.0], [2]);
        for error in [uploaded.unwrap_err(), before.to_vec::<f32>().unwrap_err()] {
            let Error::Device { reason: DeviceFault::Compute(ComputeError::Lost(lost)), .. } = &error else {
                panic!("{error:?}")
            };
            assert!(matches!(lost, SourceError::Poisoned { call: "cuEventRecord", .. }), "{lost:?}");
        }
    });
}
