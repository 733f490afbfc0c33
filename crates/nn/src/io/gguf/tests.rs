use super::*;

/// Appends to a file as the format does.
#[derive(Clone, Default)]
struct Builder(Vec<u8>);

impl Builder {
    /// Begins a file of version 3.
    fn file(tensors: u64, entries: u64) -> Self {
        Self(MAGIC.to_vec()).u32(3).u64(tensors).u64(entries)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut with_length = self.u64(text.len() as u64);
        with_length.0.extend_from_slice(text.as_bytes());
        with_length
    }

    /// Appends the description of a tensor.
    fn tensor(self, name: &str, dims: &[u64], number: u32, offset: u64) -> Self {
        let named = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(named, |file, &size| file.u64(size)).u32(number).u64(offset)
    }

    /// Appends zeros: the padding of the header, and this many bytes of data.
    fn data(mut self, bytes: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 0);
        self.0
    }
}

fn parse(file: &[u8]) -> Result<GgufHeader, FileError> {
    GgufHeader::parse(file, Path::new("f"), &GgufLimits::default())
}

#[track_caller]
fn refused(file: &[u8], expected: &str) {
    let error = parse(file).expect_err("the file is invalid").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn written_files_are_read_back() {
    let metadata = BTreeMap::from([
        (ALIGNMENT.to_owned(), GgufValue::U32(64)),
        ("bool".to_owned(), GgufValue::Bool(true)),
        ("none".to_owned(), GgufValue::Array(GgufArray::U16(Vec::new()))),
        ("text".to_owned(), GgufValue::String("ä".to_owned())),
        ("nested".to_owned(), GgufValue::Array(GgufArray::Array(vec![GgufArray::F64(vec![0.5]); 2]))),
    ]);
    let array = |values: &[f32], shape: &[usize]| Array::from_slice(values, shape).unwrap();
    let tensors = Arrays::from([
        ("a".to_owned(), array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])),
        ("b".to_owned(), array(&[], &[0])),
        ("c".to_owned(), array(&[7.0], &[])),
        ("d".to_owned(), Array::from_slice(&[half::f16::ONE], [1]).unwrap()),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.gguf");
    write_gguf_to(std::fs::File::create(&path).unwrap(), &metadata, &tensors).unwrap();
    let (read, device) = (Gguf::open(&path, &GgufLimits::default()).unwrap(), Device::cpu().unwrap());
    assert_eq!(read.metadata(), &metadata);
    assert!(tensors.keys().eq(read.names()));
    for (name, array) in &tensors {
        assert_eq!(&Array::of(&read.load(name, &device).unwrap()).unwrap(), array, "{name}");
        assert_eq!(read.offset(name).unwrap() % 64, 0);
    }
    let booleans = Arrays::from([("a".to_owned(), Array::from_slice(&[true], [1]).unwrap())]);
    let error = write_gguf_to(Vec::new(), &metadata, &booleans).unwrap_err();
    assert_eq!(error.to_string(), "\"a\": GGUF has no type bool");
}

#[test]
fn version_2_is_read_and_other_versions_are_not() {
    let mut file = Builder::file(1, 0).tensor("w", &[3, 2], 0, 0).data(24);
    file[4] = 2;
    let header = parse(&file).unwrap();
    assert_eq!((header.version, header.tensors["w"].shape.dims()), (2, &[2, 3][..]));
    file[4] = 1;
    refused(&file, "version 1 cannot be read, only versions 2 and 3");
    file[4..8].copy_from_slice(&3u32.to_be_bytes());
    refused(&file, "big-endian files cannot be read");
    refused(b"", "the file does not begin with \"GGUF\"");
    refused(b"PK\x03\x04", "this is a zip archive, not a GGUF file");
}

#[test]
fn every_cut_is_an_error() {
    let file = Builder::file(1, 1).text("k").u32(8).text("v").tensor("w", &[32], 8, 0).data(34);
    assert_eq!(parse(&file).unwrap().tensors.len(), 1);
    for length in 0..file.len() {
        assert!(parse(&file[..length]).is_err(), "{length}");
    }
}

#[test]
fn counts_and_lengths_beyond_the_file_allocate_nothing() {
    refused(&Builder::file(u64::MAX, 0).data(0), "tensors, more than the 100000 allowed");
    refused(&Builder::file(0, u64::MAX).data(0), "entries of metadata, more than the 10000 allowed");
    refused(&Builder::file(0, 1).u64(u64::MAX).data(0), "truncated");
    refused(&Builder::file(0, 1).u64(1 << 62).data(0), "truncated");
    let array = |number, count| Builder::file(0, 1).text("k").u32(9).u32(number).u64(count).data(0);
    for number in [0, 6, 7, 8, 9, 12] {
        refused(&array(number, u64::MAX), "truncated");
        refused(&array(number, 1 << 61), "truncated");
        refused(&array(number, 1 << 40), "truncated");
    }
    refused(&array(13, 0), "metadata have the unknown type 13");
    refused(&Builder::file(0, 1).text("k").u32(99).data(0), "metadata have the unknown type 99");
    refused(&Builder::file(1, 0).text("w").u32(u32::MAX).data(0), "truncated");
    let limits = GgufLimits { header_bytes: 40, ..GgufLimits::default() };
    let long = Builder::file(0, 1).text("a long key of metadata").u32(4).u32(1).data(0);
    let error = GgufHeader::parse(&long, Path::new("f"), &limits).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { what: "bytes of header", limit: 40, .. }), "{error}");
}

#[test]
fn arrays_are_nested_at_most_four_deep() {
    let nested = |depth: usize| {
        let begun = Builder::file(0, 1).text("k").u32(9);
        let arrays = (1..depth).fold(begun, |file, _| file.u32(9).u64(1));
        arrays.u32(4).u64(1).u32(7).data(0)
    };
    assert!(parse(&nested(4)).is_ok());
    refused(&nested(5), "arrays are nested more than 4 deep");
    refused(&nested(100_000), "arrays are nested more than 4 deep");
}

#[test]
fn invalid_metadata_are_errors() {
    refused(&Builder::file(0, 1).text("k").u32(7).data(0).iter().map(|_| 2).collect::<Vec<_>>(), "GGUF");
    let mut boolean = Builder::file(0, 1).text("k").u32(7);
    boolean.0.push(2);
    refused(&boolean.data(0), "a boolean is neither 0 nor 1");
    let mut text = Builder::file(0, 1).text("k").u32(8).u64(1);
    text.0.push(0xff);
    refused(&text.data(0), "a text is not valid UTF-8");
    refused(
        &Builder::file(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1).data(0),
        "\"k\" is there twice",
    );
    for bad in [0, 3, 1 << 30] {
        let file = Builder::file(0, 1).text(ALIGNMENT).u32(4).u32(bad).data(0);
        refused(&file, "general.alignment is no power of two");
    }
}

#[test]
fn invalid_places_of_tensors_are_errors() {
    let two = |first: u64, second: u64| {
        Builder::file(2, 0).tensor("a", &[8], 0, first).tensor("b", &[8], 0, second).data(64)
    };
    assert!(parse(&two(0, 32)).is_ok() && parse(&two(32, 0)).is_ok());
    refused(&two(0, 0), "\"b\": it overlaps \"a\"");
    refused(&two(0, 16), "\"b\": the offset 16 is no multiple of 32");
    refused(&two(0, 64), "truncated");
    refused(&two(0, u64::MAX - 31), "truncated");
    let one = |dims: &[u64], number| Builder::file(1, 0).tensor("w", dims, number, 0).data(64);
    for dims in [&[1 << 62, 4][..], &[u64::MAX], &[1 << 32, 1 << 32], &[1 << 61], &[1 << 60]] {
        refused(&one(dims, 0), "overflow");
        refused(&one(dims, 2), "overflow");
    }
    refused(&one(&[16], 2), "rows of 16 elements are not whole blocks of Q4_0");
    refused(&one(&[128, 2], 12), "rows of 128 elements are not whole blocks of Q4_K");
    refused(&one(&[1 << 20], 0), "truncated");
    let twice = Builder::file(2, 0).tensor("w", &[8], 0, 0).tensor("w", &[8], 0, 32).data(64);
    refused(&twice, "the name \"w\" is there twice");
}

#[test]
fn unsupported_tensors_are_skipped_if_others_are_read() {
    let file = Builder::file(4, 0)
        .tensor("a", &[8], 0, 0)
        .tensor("b", &[256], 10, 32)
        .tensor("c", &[1; 9], 0, 64)
        .tensor("d", &[8], 77, 96)
        .data(128);
    let header = parse(&file).unwrap();
    let skipped: Vec<_> = header.skipped.iter().map(|skipped| (&*skipped.name, &*skipped.class)).collect();
    assert_eq!(skipped, [("b", "Q2_K"), ("c", "array"), ("d", "type 77")]);
    assert_eq!(header.tensors.len(), 1);
    refused(&Builder::file(1, 0).tensor("b", &[256], 10, 0).data(84), "element type \"Q2_K\"");
}
