use super::*;
use crate::fuzz;
use crate::io::Array;

/// Values of every element type, one of them empty, one of no axes.
fn contents() -> Safetensors {
    let mut contents = Safetensors::default();
    let mut put = |name: &str, array: highwater_tensor::Result<Array>| {
        contents.arrays.insert(name.to_owned(), array.unwrap());
    };
    put("a", Array::from_slice(&[1.5f32, -0.0, f32::NAN], [3]));
    put("b", Array::from_slice(&[1.5f64], highwater_tensor::Shape::SCALAR));
    put("c", Array::from_slice(&[i64::MIN, 7], [1, 2]));
    put("d", Array::from_slice(&[true, false, true], [3, 1]));
    put("e", Array::from_slice::<u8>(&[], [0, 4]));
    contents.metadata.insert("format".to_owned(), "pt".to_owned());
    contents
}

fn written(contents: &Safetensors) -> Vec<u8> {
    let mut file = Vec::new();
    write_safetensors_to(&mut file, contents).unwrap();
    file
}

/// A file with this header and so many zeros behind it.
fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

fn read(file: &[u8]) -> Result<Safetensors, FileError> {
    read_safetensors_from(file, "f", &SafetensorsLimits::default())
}

#[test]
fn what_is_written_is_read_back_to_the_bit() {
    let file = written(&contents());
    assert_eq!(read(&file).unwrap(), contents());
    let header_bytes = u64::from_le_bytes(file[..8].try_into().unwrap());
    assert_eq!(header_bytes % 8, 0, "data are aligned");
    assert_eq!(read(&written(&Safetensors::default())).unwrap(), Safetensors::default());
}

#[test]
fn a_file_as_the_reference_library_writes_it_is_read() {
    let header = r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"n":{"dtype":"I64","shape":[],"data_offsets":[16,24]}}   "#;
    let read = read(&file(header, 24)).unwrap();
    assert_eq!(read.arrays["w"], Array::from_slice(&[0.0f32; 4], [2, 2]).unwrap());
    assert_eq!(read.arrays["n"], Array::from_slice(&[0i64], highwater_tensor::Shape::SCALAR).unwrap());
    assert_eq!(read.metadata["format"], "pt");
}

#[test]
fn unsupported_integers_become_the_narrowest_type() {
    let one = |dtype: &str, data: &[u8]| {
        let length = data.len();
        let header = format!(r#"{{"w":{{"dtype":"{dtype}","shape":[1,2],"data_offsets":[0,{length}]}}}}"#);
        read(&[&file(&header, 0)[..], data].concat())
    };
    let i32s = |values: [i32; 2]| Array::from_slice(&values, [1, 2]).unwrap();
    let i64s = |values: [i64; 2]| Array::from_slice(&values, [1, 2]).unwrap();
    let cases: [(&str, &[u8], Array); 4] = [
        ("I8", &[0x80, 127], i32s([-128, 127])),
        ("I16", &[0, 0x80, 1, 2], i32s([-32768, 0x201])),
        ("U16", &[0, 0x80, 1, 2], i32s([32768, 0x201])),
        ("U64", &[255, 255, 255, 255, 255, 255, 255, 127, 1, 0, 0, 0, 0, 0, 0, 0], i64s([i64::MAX, 1])),
    ];
    for (dtype, data, expected) in cases {
        assert_eq!(one(dtype, data).unwrap().arrays["w"], expected, "{dtype}");
    }
    let unsigned = Array::from_slice(&[1u32 << 31, 1], [1, 2]).unwrap();
    assert_eq!(one("U32", &[0, 0, 0, 0x80, 1, 0, 0, 0]).unwrap().arrays["w"], unsigned);
    let beyond = one("U64", &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]).unwrap_err().to_string();
    let expected = "the element of w at [0, 1] is 9223372036854775808, which is out of range for i64";
    assert!(beyond.ends_with(expected), "{beyond}");
    // The limit applies to the stored elements, not to the bytes of the file.
    let limits = SafetensorsLimits { data_bytes: 7, ..SafetensorsLimits::default() };
    let narrow = file(r#"{"w":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#, 2);
    let error = read_safetensors_from(&narrow[..], "f", &limits).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { found: 8, limit: 7, .. }), "{error}");
}

#[test]
fn headers_that_lie_are_refused_and_the_error_says_where() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let good = one("F32", "[2]", "[0,8]");
    assert!(read(&file(&good, 8)).is_ok());
    let cases = [
        (one("F32", "[3]", "[0,8]"), "8 bytes do not make F32 [3]"),
        (one("F32", "[2]", "[4,12]"), "begins at 4 of the data, not at 0"),
        (one("F32", "[2]", "[8,0]"), "end before they begin"),
        (one("F32", "[2]", "[0]"), "does not have two elements"),
        (one("F32", "[-2]", "[0,8]"), "no whole number"),
        (one("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "9 axes"),
        (one("F32", "[18446744073709551615,2]", "[0,8]"), "do not make"),
        ("[]".to_owned(), "an object of tensors"),
        ("{".to_owned(), "at offset 8"),
        (format!("{},{}", &good[..good.len() - 1], &good[1..]), "\"w\" is there twice"),
        (r#"{"__metadata__":{"a":1}}"#.to_owned(), "metadata that are not texts"),
        (one("F8_E4M3", "[8]", "[0,8]"), "w has element type \"F8_E4M3\""),
    ];
    for (header, expected) in cases {
        let message = read(&file(&header, 8)).unwrap_err().to_string();
        assert!(message.starts_with("f: ") && message.contains(expected), "{header}: {message}");
    }
    assert!(read(&file(&good, 9)).unwrap_err().to_string().contains("bytes after the last tensor"));
    let message = read(&file(&good, 7)).unwrap_err().to_string();
    assert!(message.contains("the elements of w, which begins at offset"), "{message}");
}

#[test]
fn what_a_header_claims_takes_no_memory_before_it_is_there() {
    let claim = 60u64 << 30;
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{claim}],"data_offsets":[0,{claim}]}}}}"#);
    assert!(matches!(read(&file(&header, 100)), Err(FileError::Truncated { .. })));
    assert!(matches!(read(&u64::MAX.to_le_bytes()), Err(FileError::TooLarge { offset: 0, .. })));
    let limits = SafetensorsLimits { data_bytes: 15, ..SafetensorsLimits::default() };
    let file = written(&contents());
    let error = read_safetensors_from(&file[..], "f", &limits).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { found: 39, limit: 15, .. }), "{error}");
    let limits = SafetensorsLimits { tensors: 2, ..SafetensorsLimits::default() };
    assert!(matches!(
        read_safetensors_from(&file[..], "f", &limits),
        Err(FileError::TooLarge { what: "tensors", .. })
    ));
}

#[test]
fn files_cut_or_changed_at_any_byte_keep_every_promise() {
    let file = written(&contents());
    for end in 0..file.len() {
        fuzz::safetensors(&file[..end]);
        assert!(read(&file[..end]).is_err(), "a cut file is never taken for a whole one: {end}");
    }
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut changed = file.clone();
            changed[at] ^= 1 << bit;
            fuzz::safetensors(&changed);
        }
    }
}

#[test]
fn tensors_of_other_types_are_skipped_and_listed() {
    let header = r#"{"__metadata__":null,
        "axes":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]},
        "f8":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[1,3],"more":[{}]},
        "u64":{"dtype":"U64","shape":[1],"data_offsets":[3,11]},
        "w":{"dtype":"U8","shape":[2],"data_offsets":[11,13]}}"#;
    let mut whole = file(header, 0);
    whole.extend([[0; 3].as_slice(), &[255; 8], &[7, 8]].concat());
    let read = read(&whole).unwrap();
    assert_eq!(read.arrays["w"], Array::from_slice(&[7u8, 8], [2]).unwrap());
    let skipped: Vec<String> = read.skipped.iter().map(ToString::to_string).collect();
    let expected = [
        "axes (array): it has 9 axes, more than tensors have",
        "f8 (F8_E4M3): tensors do not have this element type",
        "u64 (u64): i64 does not hold the element 18446744073709551615 at [0]",
    ];
    assert_eq!(skipped, expected);
    assert!(self::read(&whole[..whole.len() - 12]).is_err(), "the elements of f8 are cut off");
}

#[test]
fn metadata_are_limited_like_tensors() {
    let limits = SafetensorsLimits { tensors: 2, ..SafetensorsLimits::default() };
    let read = |header: &str| read_safetensors_from(&file(header, 0)[..], "f", &limits);
    assert_eq!(read(r#"{"__metadata__":{"a":"1","b":"2"}}"#).unwrap().metadata.len(), 2);
    let error = read(r#"{"__metadata__":{"a":"1","b":"2","c":"3"}}"#).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { what: "texts of metadata", limit: 2, .. }), "{error}");
}
