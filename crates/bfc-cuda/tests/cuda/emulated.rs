//! Runs tests of this program in other processes on the emulated driver.

use super::emulated_driver::{EmulatedDriver, expected, has_sources};
use super::{CudaUnavailable, probe, say_skipped};

#[test]
fn all_tests_of_devices_pass_on_the_emulated_driver() {
    if expected().is_some() {
        return;
    }
    if !has_sources() {
        return say_skipped(&"the sources of the emulated driver are not here");
    }
    let driver = EmulatedDriver::new("all_tests_of_devices_pass_on_the_emulated_driver");
    let run = |filter, variables| driver.run_matching(filter, "", variables);
    let without_graphs = |reason, variables| driver.run_matching("device_steps_compute", reason, variables);
    let text = run("device_", &[]);
    assert!(!text.contains(" 0 passed") && !text.contains("skipped"), "{text}");
    run("probing_answers", &[]);
    run("products_come", &[]);
    without_graphs("cuGraphCreate: CUDA_ERROR_NOT_SUPPORTED", &[("EMULATED_NO_GRAPHS", "1")]);
    run("device_steps_end", &[("EMULATED_NO_GRAPHS", "1")]);
    // A capture is tried four times.
    run("device_steps", &[("EMULATED_INTERRUPTED_CAPTURES", "3")]);
    let interrupted = "cuStreamEndCapture: other work of the process interrupted 4 captures";
    without_graphs(interrupted, &[("EMULATED_INTERRUPTED_CAPTURES", "4")]);
    // The driver compiles PTX for a device that the compiler does not know.
    run("device_steps", &[("EMULATED_CAPABILITY", "100")]);
    run("a_refused_free", &[]);
    run("a_lost_device", &[("EMULATED_RECORD_STATUS", "700")]);
    run("device_mapped_memory", &[("EMULATED_NO_MAPPING", "1")]);
    run("device_ranks", &[("EMULATED_DEVICES", "4")]);
    run("device_ranks", &[("EMULATED_LAZY", "1")]);
}

#[test]
fn each_way_for_cuda_to_be_absent_has_its_reason() {
    if let Some(expected) = expected() {
        let reason: CudaUnavailable = probe().unwrap_err();
        assert_eq!(reason.to_string(), expected);
        return;
    }
    if !has_sources() {
        return say_skipped(&"the sources of the emulated driver are not here");
    }
    let test = "each_way_for_cuda_to_be_absent_has_its_reason";
    let run = |driver: &EmulatedDriver, reason, variables| {
        driver.run(reason, variables);
        driver.run_matching("probing_answers", reason, variables);
    };
    let driver = EmulatedDriver::new(test);
    run(&driver, "no CUDA device", &[("EMULATED_INIT_STATUS", "100")]);
    run(&driver, "no CUDA device", &[("EMULATED_DEVICES", "0")]);
    let hidden = "no CUDA device (CUDA_VISIBLE_DEVICES is \"7\")";
    run(&driver, hidden, &[("EMULATED_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "7")]);
    let stub = "CUDA is not usable: cuInit failed with CUDA_ERROR_STUB_LIBRARY";
    run(&driver, stub, &[("EMULATED_INIT_STATUS", "34")]);
    let damaged = "the CUDA driver is too old or damaged: function cuMemHostAlloc is missing";
    run(&EmulatedDriver::without_toolkit(test, &["-DcuMemHostAlloc=another_function"]), damaged, &[]);
}
