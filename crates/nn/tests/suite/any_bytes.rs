//! Valid checkpoints and state dictionaries, damaged at every byte, and given to the fuzz targets' functions.

use std::path::Path;

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

/// Each row of the table of docs/files.md needs a reader of [`fuzz::READERS`], and each reader a row.
#[test]
fn every_reader_of_the_docs_has_a_check_of_arbitrary_bytes() {
    // These belong to other crates.
    const OTHERS: &[&str] = &["traces", "recordings (`.hwm`)", "packings, training logs"];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/files.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("| file | function | contents |\n").unwrap();
    let rows = table.lines().skip(1).map_while(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some((cells.next()?, cells.next()?.split('`').skip(1).step_by(2).collect::<Vec<_>>()))
    });
    let rows: Vec<_> = rows.filter(|(file, _)| !OTHERS.contains(file)).collect();
    for (file, functions) in &rows {
        let is_checked = fuzz::READERS.iter().any(|(reader, _)| functions.contains(reader));
        assert!(is_checked, "{file}: add {functions:?} to `READERS` in src/fuzz.rs");
    }
    for (reader, _) in fuzz::READERS {
        assert!(
            rows.iter().any(|(_, functions)| functions.contains(reader)),
            "docs/files.md: missing {reader}"
        );
        let input = fuzz::input_of_files(reader, b"a file of no format").unwrap();
        fuzz::files(&input);
    }
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
fn a_gguf_file_is_read_or_refused() {
    let path = format!("{}/tests/reference/blocks.gguf", env!("CARGO_MANIFEST_DIR"));
    damaged(fuzz::gguf, &std::fs::read(path).unwrap(), &[1, 4, 0x80]);
}

#[test]
fn an_index_of_shards_is_read_or_refused() {
    let index =
        br#"{"metadata": {"total_size": 8}, "weight_map": {"a": "x.safetensors", "b": "y/z.safetensors"}}"#;
    damaged(fuzz::shard_index, index, &[1, 4, 0x10, 0x80]);
}

#[test]
fn json_lines_are_read_or_refused() {
    let lines = "\u{feff}{\"prompt\": \"a\", \"answer\": \"\u{e9}b\", \"other\": [[1.5e3, null]]}\n\n{\"messages\": \
        [{\"role\": \"user\", \"content\": \"a\\n\\u00e9\"}, {\"role\": \"assistant\", \"content\": \"\"}]}\r\n{\"prompt\": \"\", \"completion\": \"b\"}";
    damaged(fuzz::pairs, lines.as_bytes(), &[1, 4, 0x10, 0x20, 0x80]);
}

#[test]
fn a_state_dict_is_read_or_refused() {
    for name in ["tensors", "training", "module", "complex"] {
        let path = format!("{}/tests/reference/{name}.pt", env!("CARGO_MANIFEST_DIR"));
        damaged(fuzz::state_dict, &std::fs::read(path).unwrap(), &[1, 4, 0x80]);
    }
}
