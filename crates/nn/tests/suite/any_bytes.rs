//! Valid checkpoints and state dictionaries, damaged at every byte, and given to the fuzz targets' functions.

use highwater_nn::fuzz;

/// Gives `target` the bytes cut at every place, and with each byte changed in some ways.
fn damaged(target: fn(&[u8]), bytes: &[u8], flips: &[u8]) {
    for at in 0..bytes.len() {
        target(&bytes[..at]);
        for flip in flips {
            let mut changed = bytes.to_vec();
            changed[at] ^= flip;
            target(&changed);
        }
    }
    target(bytes);
}

#[test]
fn a_checkpoint_is_restored_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    fuzz::valid_checkpoint().unwrap().save(&path).unwrap();
    let file = std::fs::read(path).unwrap();
    damaged(fuzz::checkpoint, &file, &[1, 4, 0x80]);
}

#[test]
fn a_state_dict_is_read_or_refused() {
    for name in ["tensors", "training", "module", "complex"] {
        let path = format!("{}/tests/reference/{name}.pt", env!("CARGO_MANIFEST_DIR"));
        damaged(fuzz::state_dict, &std::fs::read(path).unwrap(), &[1, 4, 0x80]);
    }
}
