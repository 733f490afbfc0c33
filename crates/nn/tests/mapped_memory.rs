//! Resident memory of mapped checkpoints: opening one reads its header only. A program of its own, because other tests
//! would change the figures.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs::File;
use std::io::Write;

use highwater_nn::io::{Gguf, GgufLimits, MappedSafetensors, SafetensorsLimits, Weights};
use highwater_tensor::Device;

const MIB: u64 = 1 << 20;

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// A sparse checkpoint of 4 GiB: 64 tensors of 64 MiB.
#[test]
fn opening_a_checkpoint_of_4_gib_reads_only_its_header() {
    const TENSORS: u64 = 64;
    const ROWS: u64 = 64 * MIB / (4 * 4096);
    let folder = tempfile::tempdir().unwrap();
    let device = Device::cpu().unwrap();

    let path = folder.path().join("model.safetensors");
    let entries: Vec<String> = (0..TENSORS)
        .map(|n| {
            let (begin, end) = (n * 64 * MIB, (n + 1) * 64 * MIB);
            format!(
                r#""layers.{n}.weight":{{"dtype":"F32","shape":[{ROWS},4096],"data_offsets":[{begin},{end}]}}"#
            )
        })
        .collect();
    let mut header = format!("{{{}}}", entries.join(","));
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(&path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + TENSORS * 64 * MIB).unwrap();
    drop(file);

    let before = resident();
    let weights = MappedSafetensors::open(&path, &SafetensorsLimits::default()).unwrap();
    let tensors: Vec<_> =
        weights.names().into_iter().map(|name| weights.load(name, &device).unwrap()).collect();
    let added = resident().saturating_sub(before);
    assert!(added <= 16 * MIB, "{added} bytes");
    assert_eq!(device.external_memory().bytes_in_use, 4096 * MIB);
    // Only the pages of the read elements become resident.
    let first = tensors[63].slice(0, ..1).unwrap();
    assert_eq!(first.sum_all().unwrap().item::<f32>().unwrap(), 0.0);
    let added = resident().saturating_sub(before);
    assert!(added <= 16 * MIB, "{added} bytes");

    // A GGUF file of one tensor of 4 GiB: magic, version, counts, name, axes, type F32, offset.
    let path = folder.path().join("model.gguf");
    let mut file = File::create(&path).unwrap();
    let mut header = b"GGUF".to_vec();
    header.extend_from_slice(&3u32.to_le_bytes());
    header.extend_from_slice(&[1u64, 0, 1].map(u64::to_le_bytes).concat());
    header.push(b'w');
    header.extend_from_slice(&2u32.to_le_bytes());
    header.extend_from_slice(&[4096, TENSORS * ROWS].map(u64::to_le_bytes).concat());
    header.extend_from_slice(&0u32.to_le_bytes());
    header.extend_from_slice(&0u64.to_le_bytes());
    header.resize(header.len().next_multiple_of(32), 0);
    file.write_all(&header).unwrap();
    file.set_len(header.len() as u64 + 4096 * MIB).unwrap();
    drop(file);
    let before = resident();
    let weights = Gguf::open(&path, &GgufLimits::default()).unwrap();
    let tensor = weights.load("w", &device).unwrap();
    assert_eq!(tensor.elements() as u64, 1024 * MIB);
    let added = resident().saturating_sub(before);
    assert!(added <= 16 * MIB, "{added} bytes");
}
