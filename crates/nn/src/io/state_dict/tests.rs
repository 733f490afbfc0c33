use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::{CompressionMethod, DataDescriptorOutput, ZipArchiveWriter};

use super::*;
use crate::io::{Array, Arrays};

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
    let loaded = read_state_dict_from(Cursor::new(file), "net.pt", &SafetensorsLimits::default());
    loaded.map(|loaded| loaded.arrays)
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
    let shapes: &[&[u8]] = &[
        b"K\x01K\x02K\x02\x86K\x02K\x01\x86",
        b"K\0K\x02K\x02\x86K\x03K\x01\x86",
        &[b"K\0K\x02K\x02\x86K\x01", &huge[..], b"\x86"].concat(),
        &[&huge[..], b"K\x02\x85K\x01\x85"].concat(),
        b"K\x04K\x01\x85K\x01\x85",
    ];
    for &of in shapes {
        let problem = problem(&tensor(b"K\x04", of), &FOUR);
        assert!(problem.ends_with("x: its strides exceed its storage"), "{problem}");
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
fn recursive_dictionaries_are_refused() {
    let itself = problem(b"\x80\x02}q\0X\x01\0\0\0xh\0s.", &[]);
    assert!(itself.ends_with("containers nested more than 16 deep"), "{itself}");
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
    assert!(
        whole.ends_with("it holds no dictionary but an object of class net.Net: save the state dict"),
        "{whole}"
    );
    assert!(
        problem(b"\x80\x02K\x01.", &[])
            .ends_with("no dictionary but an object of class int: save the state dict")
    );
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

/// A pickle of a dictionary with these alternating keys and values.
fn dict(entries: &[u8]) -> Vec<u8> {
    [b"\x80\x02}(", entries, b"u."].concat()
}

/// A call that makes a tensor of the storage `0`.
fn call(function: &str, arguments: &[u8], rest: &[u8]) -> Vec<u8> {
    let storage = b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ";
    [b"c", function.as_bytes(), b"\n", storage, arguments, rest, b"tR"].concat()
}

#[test]
fn tensors_in_wrappers_are_read() {
    let arguments = b"K\0K\x02\x85K\x02\x85";
    let numbers = [1.0f32, 2.0, 3.0, 4.0];
    let storage = numbers.map(f32::to_le_bytes).concat();
    let tensor = call("torch._utils\n_rebuild_tensor_v2", arguments, b"\x89N");
    let parameter = [&b"ctorch._utils\n_rebuild_parameter_with_state\n("[..], &tensor, b"\x88N}tR"].concat();
    let subclass = [
        &b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncnet\nKind\n"[..],
        &tensor["ctorch._utils\n_rebuild_tensor_v2\n".len()..tensor.len() - 1],
        b"}tR",
    ]
    .concat();
    // Before PyTorch 0.4.
    let old = call("torch._utils\n_rebuild_tensor", arguments, b"");
    let expected = Array::from_slice(&[1.0f32, 3.0], [2]).unwrap();
    for made in [tensor, parameter, subclass, old] {
        let arrays = read(&dict(&[b"X\x01\0\0\0x", &made[..]].concat()), &storage).unwrap();
        assert_eq!(arrays, Arrays::from([("x".to_owned(), expected.clone())]));
    }
}

#[test]
fn dictionaries_and_lists_without_tensors_are_listed_once() {
    let tensor = call("torch._utils\n_rebuild_tensor_v2", b"K\0K\x04\x85K\x01\x85", b"\x89N");
    let entries = [
        &b"X\x01\0\0\0vX\x01\0\0\0aX\x01\0\0\0x}(X\x01\0\0\0aK\x01X\x01\0\0\0bK\x02u"[..],
        b"X\x01\0\0\0l](K\x01K\x02eX\x01\0\0\0tK\x01\x85X\x01\0\0\0f\x88X\x01\0\0\0nN",
        b"X\x01\0\0\0ocos\nsystem\nX\x02\0\0\0ls\x85RX\x01\0\0\0w",
        &tensor,
    ]
    .concat();
    let file = file(&dict(&entries), &FOUR, CompressionMethod::STORE);
    let loaded = read_state_dict_from(Cursor::new(file), "net.pt", &SafetensorsLimits::default()).unwrap();
    assert_eq!(loaded.arrays.keys().collect::<Vec<_>>(), ["w"]);
    let skipped: Vec<(&str, &str)> =
        loaded.skipped.iter().map(|skipped| (&*skipped.name, &*skipped.class)).collect();
    let expected = [
        ("v", "str"),
        ("x", "dict"),
        ("l", "list"),
        ("t", "tuple"),
        ("f", "bool"),
        ("n", "NoneType"),
        ("o", "os.system"),
    ];
    assert_eq!(skipped, expected);
}

/// The names of the tensors, and the names and classes of what is skipped.
fn names(entries: &[u8]) -> (Vec<String>, Vec<(String, String)>) {
    let file = file(&dict(entries), &FOUR, CompressionMethod::STORE);
    let loaded = read_state_dict_from(Cursor::new(file), "net.pt", &SafetensorsLimits::default()).unwrap();
    let skipped = loaded.skipped.into_iter().map(|skipped| (skipped.name, skipped.class));
    (loaded.arrays.into_keys().collect(), skipped.collect())
}

#[test]
fn tensors_in_lists_are_read() {
    let tensor = call("torch._utils\n_rebuild_tensor_v2", b"K\0K\x04\x85K\x01\x85", b"\x89N");
    // {"l": [tensor, 1, (tensor,)], "d": [{"x": tensor}]}
    let list = [b"](", &tensor[..], b"K\x01", &tensor, b"\x85e"].concat();
    let dict = [b"](}X\x01\0\0\0x", &tensor[..], b"se"].concat();
    let entries = [&b"X\x01\0\0\0l"[..], &list, b"X\x01\0\0\0d", &dict].concat();
    let (arrays, skipped) = names(&entries);
    assert_eq!(arrays, ["d.0.x", "l.0", "l.2.0"]);
    assert_eq!(skipped, [("l.1".to_owned(), "int".to_owned())]);
}

#[test]
fn keys_of_other_classes_do_not_hide_the_rest() {
    let tensor = call("torch._utils\n_rebuild_tensor_v2", b"K\0K\x04\x85K\x01\x85", b"\x89N");
    // {(0, 1): tensor, -1: 7, 1: tensor, "1": tensor}
    let entries =
        [&b"K\0K\x01\x86"[..], &tensor, b"J\xff\xff\xff\xffK\x07K\x01", &tensor, b"X\x01\0\0\x001", &tensor]
            .concat();
    let (arrays, skipped) = names(&entries);
    let class = |name: &str, class: &str| (name.to_owned(), class.to_owned());
    assert_eq!(arrays, ["1"]);
    let expected = [class("?", "torch._utils._rebuild_tensor_v2"), class("?", "int"), class("1", "tensor")];
    assert_eq!(skipped, expected);
}

#[test]
fn tensors_that_share_elements_are_bounded_by_the_file() {
    // 4,096 × 4,096 elements of one: 64 MiB.
    let expanded = |dims: &[u8]| tensor(b"K\x04", &[b"K\0", dims, b"K\0K\0\x86"].concat());
    let read = |pickle: &[u8], expansion| {
        let file = file(pickle, &FOUR, CompressionMethod::STORE);
        let limits = SafetensorsLimits { expansion, ..SafetensorsLimits::default() };
        read_state_dict_from(Cursor::new(file), "net.pt", &limits).map(|loaded| loaded.arrays)
    };
    let large = expanded(b"M\0\x10M\0\x10\x86");
    let refused = read(&large, 5).unwrap_err();
    assert!(matches!(refused, FileError::TooLarge { what: "bytes of tensors", limit: 0x100_0000, .. }));
    assert_eq!(read(&large, 1 << 20).unwrap()["x"].bytes().len(), 64 << 20);
    assert_eq!(read(&expanded(b"M\0\x08M\0\x08\x86"), 5).unwrap()["x"].bytes().len(), 16 << 20);
}

#[test]
fn the_high_byte_may_come_first() {
    let pickle = tensor(b"K\x04", b"K\0K\x04\x85K\x01\x85");
    let storage = [1.0f32, 2.0, 3.0, 4.0].map(f32::to_be_bytes).concat();
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, contents) in
        [("net/data.pkl", &pickle[..]), ("net/byteorder", b"big"), ("net/data/0", &storage)]
    {
        let (mut file, config) = archive.new_file(name).start().unwrap();
        let mut writer = config.wrap(&mut file);
        writer.write_all(contents).unwrap();
        let written = writer.finish().unwrap().1;
        file.finish(written).unwrap();
    }
    let file = Cursor::new(archive.finish().unwrap());
    let loaded = read_state_dict_from(file, "net.pt", &SafetensorsLimits::default()).unwrap();
    assert_eq!(loaded.arrays["x"], Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4]).unwrap());
}

/// A legacy file with this object, these keys of storages, and these bytes behind.
fn legacy(object: &[u8], keys: &[u8], storages: &[u8]) -> Vec<u8> {
    let start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.";
    [start, object, b"\x80\x02](", keys, b"e.", storages].concat()
}

#[test]
fn legacy_files_skip_storages_that_are_not_needed() {
    let storage = |class: &str, key: u8, count: u8, view: &[u8]| {
        let id = [&b"((X\x07\0\0\0storagectorch\n"[..], class.as_bytes(), b"\nX\x01\0\0\0", &[key]].concat();
        [&b"ctorch._utils\n_rebuild_tensor_v2\n"[..], &id, b"X\x03\0\0\0cpuK", &[count], view, b"tQ"].concat()
    };
    let vector = |count: u8| [&b"K\0K"[..], &[count], b"\x85K\x01\x85\x89NtR"].concat();
    // A complex tensor, and a view from the second element of a storage on.
    let complex = [storage("ComplexFloatStorage", b'c', 1, b"N"), vector(1)].concat();
    let view = [storage("FloatStorage", b'f', 3, b"X\x01\0\0\0vK\x01K\x02\x87"), vector(2)].concat();
    let object = dict(&[b"X\x01\0\0\0c", &complex[..], b"X\x01\0\0\0w", &view].concat());
    let keys = b"X\x01\0\0\0cX\x01\0\0\0f";
    let storages = [
        &1_u64.to_le_bytes()[..],
        &[9; 8],
        &3_u64.to_le_bytes(),
        &[1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat(),
    ]
    .concat();
    let whole = legacy(&object, keys, &storages);
    let read = |file: &[u8]| read_state_dict_from(Cursor::new(file), "net.pt", &SafetensorsLimits::default());
    let loaded = read(&whole).unwrap();
    let expected = Array::from_slice(&[2.0f32, 3.0], [2]).unwrap();
    assert_eq!(loaded.arrays, Arrays::from([("w".to_owned(), expected)]));
    assert_eq!(loaded.skipped[0].class, "torch.ComplexFloatStorage");
    for end in 0..whole.len() {
        assert!(read(&whole[..end]).is_err(), "{end}");
        crate::fuzz::state_dict(&whole[..end]);
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x41;
        crate::fuzz::state_dict(&changed);
    }
    let unknown = legacy(&object, b"X\x01\0\0\0x", &storages);
    assert!(read(&unknown).unwrap_err().to_string().ends_with("the type of storage x is unknown"));
    let absent = legacy(&object, b"X\x01\0\0\0c", &storages);
    assert!(read(&absent).unwrap_err().to_string().ends_with("storage f is not in the file"));
}
