//! Pools of device memory, on the emulated driver.

use std::process::Command;

use bfc::*;

use crate::emulated_driver::{EmulatedDriver, expected, has_sources};
use crate::support::{Block, allocate, free, message, open, reallocate, stats, string};

/// A variable of processes on the emulated driver.
const EXPECTED: &str = "EMULATED_EXPECTED";

#[test]
fn pools_of_a_gpu_serve_device_and_pinned_memory() {
    if expected().is_some() {
        return device_and_pinned_memory();
    }
    if !has_sources() {
        return;
    }
    let test = "pools_of_a_gpu_serve_device_and_pinned_memory";
    let driver = EmulatedDriver::without_toolkit(test, &[]);
    // No kernel runs, so that none has to be compiled.
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--nocapture"])
        .env("LD_LIBRARY_PATH", driver.path(""))
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env(EXPECTED, "")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn device_and_pinned_memory() {
    for limit in [100 << 10, (2 << 20) - 1] {
        assert_eq!(open(&format!("memory=cuda,limit={limit}")), Err(BFC_ERROR_INVALID_CONFIGURATION));
        let text = message();
        assert!(text.contains(&format!("{limit} bytes")) && text.contains("2097152 bytes"), "{text}");
    }
    for limit in [3 << 20, 5 << 20, 7169 << 10] {
        for options in ["", ",growth=on", ",growth=doubling"] {
            let pool = open(&format!("memory=cuda,limit={limit},retry_ms=0{options}")).unwrap();
            let blocks: Vec<Block> =
                std::iter::from_fn(|| allocate(pool, 100_000, "gpu.buffer").ok()).collect();
            assert!(!blocks.is_empty() && stats(pool).peak_bytes_reserved <= limit, "{options}: {limit}");
            blocks.into_iter().for_each(|block| assert_eq!(free(pool, block), BFC_OK));
            assert_eq!(bfc_pool_close(pool), BFC_OK, "{}", message());
        }
    }
    let opened = ["memory=cuda,limit=64MiB", "buddy:memory=cuda:0,limit=64MiB", "memory=pinned,limit=8MiB"]
        .map(|text| open(text).unwrap_or_else(|_| panic!("{text}: {}", message())));
    let [device, _, pinned] = opened;
    let blocks = opened.map(|pool| allocate(pool, 100_000, "gpu.buffer").unwrap());
    assert_eq!(reallocate(device, blocks[0], 10), Err(BFC_ERROR_UNSUPPORTED));
    assert_eq!(message(), "pool cuda:0: the block must move, and the host cannot copy device memory");
    let moved = reallocate(pinned, blocks[2], 200_000).unwrap();
    assert_eq!(stats(device).bytes_requested, 100_000);
    let report = string(0, bfc_report_text);
    for name in ["gpu", "buffer", "cuda:0", "cuda:0-2", "pinned:0"] {
        assert!(report.contains(name), "{report}");
    }
    for (pool, block) in opened.into_iter().zip([blocks[0], blocks[1], moved]) {
        assert_eq!(free(pool, Block(block.0)), BFC_OK);
        assert_eq!(bfc_pool_close(pool), BFC_OK, "{}", message());
    }
}
