use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::{CompressionMethod, DataDescriptorOutput, ZipArchiveWriter};

use super::*;

/// A file with this pickle and one storage, `0`.
fn file(pickle: &[u8], storage: &[u8], method: CompressionMethod) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, contents) in [("net/data.pkl", pickle), ("net/byteorder", b"little"), ("net/data/0", storage)]
    {
        let (mut file, config) = archive.new_file(name).compression_method(method).start().unwrap();
        let written = if method == CompressionMethod::STORE {
            let mut writer = config.wrap(&mut file);
            writer.write_all(contents).unwrap();
            writer.finish().unwrap().1
        } else {
            let mut writer = config.wrap(DeflateEncoder::new(&mut file, Compression::default()));
            writer.write_all(contents).unwrap();
            let (encoder, written) = writer.finish().unwrap();
            encoder.finish().unwrap();
            written
        };
        file.finish(written).unwrap();
    }
    archive.finish().unwrap()
}

fn read(pickle: &[u8], storage: &[u8]) -> Result<Arrays, FileError> {
    let file = file(pickle, storage, CompressionMethod::STORE);
    read_state_dict_from(Cursor::new(file), "net.pt", &SafetensorsLimits::default())
}

fn problem(pickle: &[u8], storage: &[u8]) -> String {
    read(pickle, storage).unwrap_err().to_string()
}

/// A pickle of one tensor, `x`, of a storage of so many f32; `of` is its offset, its shape and its strides.
fn tensor(count: &[u8], of: &[u8]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}X\x01\0\0\0xctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage".to_vec();
    pickle.extend(b"ctorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu");
    pickle.extend([count, b"tQ", of, b"\x89NtRs."].concat());
    pickle
}

const FOUR: [u8; 16] = [0; 16];

#[test]
fn strides_and_offsets_that_leave_the_storage_are_refused() {
    // Four elements, as [2, 2].
    assert!(read(&tensor(b"K\x04", b"K\0K\x02K\x02\x86K\x02K\x01\x86"), &FOUR).is_ok());
    let huge = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let shapes: [&[u8]; 5] = [
        b"K\x01K\x02K\x02\x86K\x02K\x01\x86",
        b"K\0K\x02K\x02\x86K\x03K\x01\x86",
        &[b"K\0K\x02K\x02\x86K\x01", &huge[..], b"\x86"].concat(),
        &[&huge[..], b"K\x02\x85K\x01\x85"].concat(),
        b"K\x04K\x01\x85K\x01\x85",
    ];
    for of in shapes {
        let problem = problem(&tensor(b"K\x04", of), &FOUR);
        assert!(problem.ends_with("x: its strides lead out of its storage"), "{problem}");
    }
    // The stride of a single element leads nowhere.
    let single = [b"K\0K\x01K\x02\x86", &huge[..], b"K\x02\x86"].concat();
    assert!(read(&tensor(b"K\x04", &single), &FOUR).is_ok());
    // Of nothing there is nothing outside.
    assert!(read(&tensor(b"K\x04", b"K\x63K\0\x85K\x01\x85"), &FOUR).is_ok());
}

#[test]
fn sizes_that_are_only_claimed_take_no_memory() {
    let huge = b"\x8a\x07\0\0\0\0\0\0\x01";
    // A storage of 2⁴⁸ elements, or a tensor of as many that are all one element.
    let claims = [
        tensor(huge, b"K\0K\x04\x85K\x01\x85"),
        tensor(b"K\x04", &[b"K\0", &huge[..], b"\x85K\0\x85"].concat()),
    ];
    for claim in claims {
        assert!(matches!(read(&claim, &FOUR), Err(FileError::TooLarge { what: "bytes of tensors", .. })));
    }
    let short = problem(&tensor(b"K\x05", b"K\0K\x04\x85K\x01\x85"), &FOUR);
    assert!(short.contains("net/data/0") && short.ends_with("16 bytes, where the pickle says 20"), "{short}");
}

#[test]
fn dictionaries_in_themselves_and_in_each_other_without_end_are_refused() {
    let itself = problem(b"\x80\x02}q\0X\x01\0\0\0xh\0s.", &[]);
    assert!(itself.ends_with("dictionaries in each other, more than 16 deep"), "{itself}");
    // Each has the one before eight times: 8¹⁵ in all.
    let mut pickle = b"\x80\x02}q\0".to_vec();
    for level in 0..15_u8 {
        pickle.push(b'}');
        for key in 0..8 {
            pickle.extend([&b"K"[..], &[key], b"h", &[level], b"s"].concat());
        }
        pickle.extend([b'q', level + 1]);
    }
    pickle.push(b'.');
    assert!(matches!(read(&pickle, &[]), Err(FileError::TooLarge { what: "tensors", .. })));
}

#[test]
fn functions_are_named_and_not_called() {
    let called = problem(b"\x80\x02}X\x01\0\0\0xcos\nsystem\nX\x02\0\0\0ls\x85Rs.", &[]);
    assert!(
        called.ends_with("x: it is made by os.system, which is not called: only tensors are read"),
        "{called}"
    );
    let whole = problem(b"\x80\x02cnet\nNet\n)\x81.", &[]);
    assert!(whole.contains("NEWOBJ") && whole.contains("net/data.pkl"), "{whole}");
    assert!(problem(b"\x80\x02K\x01.", &[]).ends_with("it holds no dictionary: save the state dict"));
    assert_eq!(read(b"\x80\x02}(X\x01\0\0\0aK\x01X\x01\0\0\0bG\0\0\0\0\0\0\0\0u.", &[]), Ok(Arrays::new()));
}

#[test]
fn archives_that_pytorch_does_not_write_are_refused() {
    let read =
        |bytes: &[u8]| read_state_dict_from(Cursor::new(bytes), "net.pt", &SafetensorsLimits::default());
    let pickle = tensor(b"K\x04", b"K\0K\x04\x85K\x01\x85");
    let compressed = read(&file(&pickle, &FOUR, CompressionMethod::DEFLATE)).unwrap_err().to_string();
    assert!(compressed.contains("compressed"), "{compressed}");
    let mut archive = ZipArchiveWriter::new(Vec::new());
    let (file, _) = archive.new_file("readme").start().unwrap();
    file.finish(DataDescriptorOutput::new(0, 0)).unwrap();
    let none = read(&archive.finish().unwrap()).unwrap_err().to_string();
    assert!(none.contains("PyTorch has not written this"), "{none}");
    assert!(matches!(read(b"PK\x03\x04"), Err(FileError::Malformed { .. })));
}
