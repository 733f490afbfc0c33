use highwater_tensor::{DType, Shape};
use rawzip::ZipArchiveWriter;

use super::*;
use crate::fuzz;
use crate::io::npz::{read_npz_bytes, write_npz_to};
use crate::io::{Arrays, read_npz_from};

/// The bytes that `numpy.save` (2.4) writes before the elements.
fn numpy(descr: &str, fortran: &str, shape: &str) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    text.push_str(&" ".repeat(117 - text.len()));
    [b"\x93NUMPY\x01\x00v\x00", text.as_bytes(), b"\n"].concat()
}

/// A header as it stands, with so many zeros behind it.
fn file(text: &str, data: usize) -> Vec<u8> {
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), &vec![0; data]].concat()
}

fn read(file: &[u8]) -> Result<Array, FileError> {
    read_npy_from(file, "f", &NpyLimits::default())
}

fn written(array: &Array) -> Vec<u8> {
    let mut file = Vec::new();
    write_npy_to(&mut file, array).unwrap();
    file
}

/// Values of every element type, one of them empty, one of no axes.
fn arrays() -> Arrays {
    let all = [
        ("a", Array::from_slice(&[1.5f32, -0.0, f32::NAN], [3])),
        ("b", Array::from_slice(&[1.5f64], Shape::SCALAR)),
        ("c", Array::from_slice(&[i64::MIN, 7], [1, 2])),
        ("d", Array::from_slice(&[true, false, true], [3, 1])),
        ("e", Array::from_slice::<u8>(&[], [0, 4])),
        ("f", Array::from_slice(&[half::f16::NEG_ZERO, half::f16::MAX], [2])),
        ("g", Array::from_slice(&[i32::MIN, -7], [2, 1])),
        ("h", Array::from_slice(&[u32::MAX, 7], [2, 1])),
    ];
    all.into_iter().map(|(name, array)| (name.to_owned(), array.unwrap())).collect()
}

#[test]
fn files_are_those_of_numpy_to_the_byte() {
    let halves: Vec<f32> = (0..6).map(|i| i as f32 / 2.0).collect();
    let array = Array::from_slice(&halves, [2, 3]).unwrap();
    let whole = [numpy("<f4", "False", "(2, 3)"), array.bytes().to_vec()].concat();
    assert_eq!(written(&array), whole);
    assert_eq!(read(&whole).unwrap(), array);
    let bytes = Array::from_slice(&[1u8, 2], [2]).unwrap();
    assert_eq!(written(&bytes), [numpy("|u1", "False", "(2,)"), vec![1, 2]].concat());
    let half = Array::from_slice(&[half::f16::ONE], [1]).unwrap();
    assert_eq!(written(&half), [numpy("<f2", "False", "(1,)"), vec![0, 0x3c]].concat());
    let narrow = Array::from_slice(&[-2i32], [1]).unwrap();
    assert_eq!(written(&narrow), [numpy("<i4", "False", "(1,)"), vec![0xfe, 0xff, 0xff, 0xff]].concat());
    let unsigned = Array::from_slice(&[u32::MAX - 1], [1]).unwrap();
    assert_eq!(written(&unsigned), [numpy("<u4", "False", "(1,)"), vec![0xfe, 0xff, 0xff, 0xff]].concat());
    let single = Array::from_slice(&[2.5f64], Shape::SCALAR).unwrap();
    assert_eq!(written(&single), [numpy("<f8", "False", "()"), 2.5f64.to_le_bytes().to_vec()].concat());
}

#[test]
fn a_type_that_numpy_lacks_is_refused_in_writing() {
    let array = Array::from_slice(&[half::bf16::ONE], [1]).unwrap();
    let error = write_npy_to(&mut Vec::new(), &array).unwrap_err();
    assert_eq!(error.to_string(), "NumPy has no bf16");
    let several = Arrays::from([("fc1.weight".to_owned(), array)]);
    let error = write_npz_to(&mut Vec::new(), &several).unwrap_err();
    assert_eq!(
        (error.kind(), &*error.to_string()),
        (io::ErrorKind::InvalidInput, "fc1.weight: NumPy has no bf16")
    );
}

#[test]
fn what_is_written_is_read_back_to_the_bit() {
    for array in arrays().values() {
        assert_eq!(read(&written(array)).unwrap(), *array);
    }
}

#[test]
fn an_archive_that_numpy_compressed_is_read() {
    let arrays = read_npz_bytes(include_bytes!("tests/numpy.npz"), &NpyLimits::default()).unwrap().arrays;
    let count: Vec<i64> = (0..24).collect();
    // Its elements lie in Fortran's order.
    assert_eq!(arrays["f"], Array::from_slice(&count, [2, 3, 4]).unwrap());
    assert_eq!(arrays["w"], Array::from_slice(&[0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5], [2, 3]).unwrap());
    assert_eq!(arrays["n"], Array::from_slice(&[2.5f64], Shape::SCALAR).unwrap());
    assert_eq!(arrays["t"], Array::from_slice(&[true, false], [2]).unwrap());
    assert_eq!(arrays["e"], Array::from_slice::<u8>(&[], [0, 4]).unwrap());
    assert_eq!(arrays.len(), 5);
}

#[test]
fn an_archive_holds_what_was_written() {
    let mut file = Vec::new();
    write_npz_to(&mut file, &arrays()).unwrap();
    assert_eq!(read_npz_bytes(&file, &NpyLimits::default()).unwrap().arrays, arrays());
    let mut again = Vec::new();
    write_npz_to(&mut again, &arrays()).unwrap();
    assert_eq!(file, again, "the same arrays make the same file");
}

#[test]
fn headers_are_read_however_they_are_written() {
    let expected = Array::from_slice(&[0.0f32; 2], [2, 1]).unwrap();
    for text in [
        "{'descr':'<f4','fortran_order':False,'shape':(2,1)}",
        " { \"shape\" : ( 2 , 1 , ) , \"fortran_order\" : True , \"descr\" : \"<f4\" , } \n",
    ] {
        assert_eq!(read(&file(text, 8)).unwrap(), expected, "{text}");
    }
    let mut second = file("{'descr':'|b1','fortran_order':False,'shape':()}", 1);
    second[6] = 2;
    second.splice(10..10, [0, 0]);
    assert_eq!(read(&second).unwrap(), Array::from_slice(&[false], Shape::SCALAR).unwrap());
}

#[test]
fn the_high_byte_may_come_first_in_every_type() {
    for array in arrays().values() {
        let file = written(array);
        let (header, elements) = file.split_at(file.len() - array.bytes().len());
        let turned: Vec<u8> =
            elements.chunks(array.dtype().size()).flat_map(|element| element.iter().rev().copied()).collect();
        let header = String::from_utf8_lossy(header).replace("'<", "'>").replace("'|", "'>");
        let header: Vec<u8> =
            header.chars().map(|char| if char == '\u{fffd}' { 0x93 } else { char as u8 }).collect();
        assert_eq!(read(&[header, turned].concat()).unwrap(), *array);
    }
    let columns = [numpy(">i4", "True", "(2, 2)"), [1, 2, 3, 4].map(i32::to_be_bytes).concat()].concat();
    assert_eq!(read(&columns).unwrap(), Array::from_slice(&[1, 3, 2, 4], [2, 2]).unwrap());
}

#[test]
fn unsupported_integers_are_upcast_exactly() {
    fn check<T: highwater_tensor::Element + PartialEq + std::fmt::Debug>(
        names: [&str; 2],
        expected: &[T],
        low: &[u8],
        high: &[u8],
    ) {
        for (name, elements) in names.into_iter().zip([low, high]) {
            let file = [numpy(name, "False", &format!("({},)", expected.len())), elements.to_vec()].concat();
            assert_eq!(
                read(&file).unwrap(),
                Array::from_slice(expected, [expected.len()]).unwrap(),
                "{name}"
            );
        }
    }
    let bytes = [0x80, 0xff, 0x7f];
    check(["|i1", ">i1"], &[-128, -1, 127], &bytes, &bytes);
    let [low, high] =
        [i16::to_le_bytes, i16::to_be_bytes].map(|bytes| [i16::MIN, -2, i16::MAX].map(bytes).concat());
    check(["<i2", ">i2"], &[-32768, -2, 32767], &low, &high);
    let [low, high] =
        [u16::to_le_bytes, u16::to_be_bytes].map(|bytes| [0, 258, u16::MAX].map(bytes).concat());
    check(["<u2", ">u2"], &[0, 258, 65535], &low, &high);
}

#[test]
fn u64_arrays_are_read_if_i64_holds_their_values() {
    let most = i64::MAX as u64;
    for (name, bytes) in [("<u8", u64::to_le_bytes as fn(u64) -> [u8; 8]), (">u8", u64::to_be_bytes)] {
        let file = |order: &str, values: [u64; 6]| {
            [numpy(name, order, "(2, 3)"), values.map(bytes).concat()].concat()
        };
        let whole = file("False", [0, 1, 258, most, 4, 5]);
        assert_eq!(read(&whole).unwrap(), Array::from_slice(&[0, 1, 258, i64::MAX, 4, 5], [2, 3]).unwrap());
        // The first that it does not hold is named, wherever it lies. Elements begin at byte 128.
        for (order, position, index) in
            [("False", 0, [0, 0]), ("False", 4, [1, 1]), ("True", 3, [1, 1]), ("True", 4, [0, 2])]
        {
            let mut values = [0, 1, 2, 3, 4, most + 1];
            values[position] = u64::MAX - 7;
            let error = read(&file(order, values)).unwrap_err();
            let offset = 128 + 8 * position as u64;
            let (path, index, dtype) = ("f".into(), index.to_vec(), DType::I64);
            assert_eq!(
                error,
                FileError::OutOfRange {
                    path,
                    offset,
                    name: "the array".into(),
                    index,
                    value: u64::MAX - 7,
                    dtype
                }
            );
        }
    }
    let lone = [numpy("<u8", "False", "()"), u64::MAX.to_le_bytes().to_vec()].concat();
    assert_eq!(
        read(&lone).unwrap_err().to_string(),
        "f: at offset 128: the element of the array at [] is 18446744073709551615, which is out of range for i64"
    );
}

#[test]
fn elements_that_are_widened_piece_by_piece_are_all_there() {
    let numbers: Vec<u16> = (0..600_001u32).map(|i| (i * 7) as u16).collect();
    let file = [
        file("{'descr':'>u2','fortran_order':False,'shape':(600001,)}", 0),
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect(),
    ]
    .concat();
    let wide: Vec<i32> = numbers.into_iter().map(i32::from).collect();
    assert_eq!(read(&file).unwrap(), Array::from_slice(&wide, [wide.len()]).unwrap());
    // The limit is on what they become: four bytes each.
    let limits = |data_bytes| NpyLimits { data_bytes, ..NpyLimits::default() };
    assert!(read_npy_from(&file[..], "f", &limits(2_400_004)).is_ok());
    let refused = read_npy_from(&file[..], "f", &limits(2_400_003));
    assert!(matches!(refused, Err(FileError::TooLarge { found: 2_400_004, .. })), "{refused:?}");
}

#[test]
fn headers_that_lie_are_refused_and_the_error_says_where() {
    let one = |descr: &str, shape: &str| format!("{{'descr':{descr},'fortran_order':False,'shape':{shape}}}");
    assert!(read(&file(&one("'<f4'", "(2,)"), 8)).is_ok());
    let cases = [
        (one("'<f4'", "(3,)"), "the elements of the array, which begins at offset"),
        (one("'<f4'", "(1,)"), "bytes after the last element"),
        (one("'<f4'", "(-2,)"), "a size here"),
        (one("'<f4'", "(99999999999999999999,)"), "a size here"),
        (one("'<f4'", "(1,1,1,1,1,1,1,1,2)"), "the array has 9 axes, but tensors support at most 8"),
        (one("'<f4'", "2"), "'(' here"),
        (one("'>u9'", "(1,)"), "element type \">u9\""),
        (one("'>i2'", "(3,)"), "bytes after the last element"),
        (one("'>i2'", "(5,)"), "the elements of the array, which begins at offset"),
        (one("'>i3'", "(2,)"), "element type \">i3\""),
        (one("'<c8'", "(1,)"), "element type \"<c8\""),
        (one("'|O'", "(1,)"), "element type \"|O\""),
        (one("''", "(1,)"), "element type \"\""),
        (one("[('a','<f4')]", "(2,)"), "structured"),
        (one("'<f4", "(2,)"), "offset"),
        ("{'descr':'<f4','shape':(2,)}".into(), "is missing"),
        ("{'descr':'<f4','descr':'<f4','shape':(2,)}".into(), "is there twice"),
        ("{'descr':'<f4','order':'C','shape':(2,)}".into(), "unknown key"),
        (
            "{'descr':'<f4','fortran_order':0,'shape':(2,)}".into(),
            "at offset 41: the header should have True",
        ),
        ("{'descr':'<f4','fortran_order':True,'shape':(2,)} x".into(), "the end of the header"),
        ("".into(), "'{' here"),
    ];
    for (text, expected) in cases {
        let message = read(&file(&text, 8)).unwrap_err().to_string();
        assert!(message.starts_with("f: ") && message.contains(expected), "{text}: {message}");
    }
    assert!(read(b"PK\x03\x04....").unwrap_err().to_string().contains("offset 0"));
    let mut newer = file(&one("'<f4'", "(2,)"), 8);
    newer[6] = 9;
    assert!(read(&newer).unwrap_err().to_string().contains("version 9"));
    let truth = read(&[&file(&one("'|b1'", "(2,)"), 1)[..], &[2]].concat()).unwrap_err();
    assert!(truth.to_string().contains("neither 0 nor 1"), "{truth}");
}

#[test]
fn element_types_may_have_any_mark_of_the_native_order() {
    for descr in ["'<f4'", "'|f4'", "'=f4'", "'f4'", "u'<f4'"] {
        let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2L,), }}");
        let file = [file(&text, 0), [1.0f32, 2.0].map(f32::to_le_bytes).concat()].concat();
        assert_eq!(read(&file).unwrap(), Array::from_slice(&[1.0f32, 2.0], [2]).unwrap(), "{descr}");
    }
}

#[test]
fn element_types_are_read_by_every_name_of_numpy() {
    // The results of `numpy.dtype` (2.4, Linux) for each spelling.
    let spellings: [(&str, &[&str]); 12] = [
        ("<f2", &["e", "<e", "=e", "float16", "half", "f2", "=f2", "|f2"]),
        ("<f4", &["f", "<f", "|f", "float32", "single", "f4", "=f4"]),
        ("<f8", &["d", "=d", "double", "float", "float64", "f8"]),
        ("|i1", &["b", "<b", ">b", "byte", "int8", "i1", ">i1"]),
        ("<i2", &["h", "int16", "short", "i2"]),
        ("<i4", &["i", "=i", "int32", "intc", "i4"]),
        ("<i8", &["l", "n", "p", "q", "<l", "int", "int64", "int_", "intp", "long", "longlong", "i8"]),
        ("|u1", &["B", ">B", "ubyte", "uint8", "u1"]),
        ("<u2", &["H", "uint16", "ushort", "u2"]),
        ("<u4", &["I", "uint32", "uintc", "u4"]),
        ("<u8", &["L", "N", "P", "Q", "uint", "uint64", "uintp", "ulong", "ulonglong", "u8"]),
        ("|b1", &["?", "<?", ">?", "bool", "bool_", "b1", "=b1"]),
    ];
    for (usual, others) in spellings {
        let size: usize = usual[2..].parse().unwrap();
        let data = &[1, 0, 1, 0, 0, 0, 1, 0][..size];
        let of = |descr: &str| read(&[numpy(descr, "False", "(1,)"), data.to_vec()].concat());
        let expected = of(usual).unwrap();
        for other in others {
            assert_eq!(of(other).as_ref(), Ok(&expected), "{other} is {usual}");
        }
    }
    for (high_first, short) in
        [(">e", ">f2"), (">f", ">f4"), (">d", ">f8"), (">l", ">i8"), (">H", ">u2"), (">Q", ">u8")]
    {
        let size: usize = short[2..].parse().unwrap();
        let data = &[0x3f, 0x80, 1, 2, 3, 4, 5, 6][..size];
        let of = |descr: &str| read(&[numpy(descr, "False", "(1,)"), data.to_vec()].concat());
        assert_eq!(of(high_first).unwrap(), of(short).unwrap(), "{high_first}");
    }
    // NumPy refuses these, or they are types that tensors do not have.
    for other in [
        "<float32",
        ">float",
        "=half",
        "|bool",
        "Float32",
        "F4",
        "f",
        "<c8",
        "F",
        "complex64",
        "S",
        "S4",
        "U3",
        "<U3",
        "O",
        "object",
        "V8",
        "M8[s]",
        "g",
        "float128",
        "longdouble",
        "f16",
        "<=f4",
        "f4,f4",
        "2f4",
        "",
        "<",
        "f5",
        "lq",
        "b2",
    ] {
        let found = read(&[numpy(other, "False", "(1,)"), vec![0; 8]].concat());
        let is_refused = matches!(&found, Err(FileError::UnsupportedDType { dtype, .. }) if dtype == other);
        assert_eq!(is_refused, other != "f", "{other}: {found:?}");
    }
}

#[test]
fn headers_of_python_2_and_of_every_version_are_read() {
    let expected = Array::from_slice(&[1.0f32, 2.0], [2, 1]).unwrap();
    let data = [1.0f32, 2.0].map(f32::to_le_bytes).concat();
    for text in [
        "{u'descr': u'<f4', u'fortran_order': False, u'shape': (2L, 1L), }",
        "{'shape': (2L, 1), 'fortran_order': False, 'descr': 'float32'}\n",
        "{\n 'descr'\t: \"f4\",\n 'shape': ( 2,1, ),\n 'fortran_order' :False,\n}   \n",
    ] {
        let first = [file(text, 0), data.clone()].concat();
        assert_eq!(read(&first).as_ref(), Ok(&expected), "{text}");
        for version in [2, 3] {
            let mut later = first.clone();
            later[6] = version;
            later.splice(10..10, [0, 0]);
            assert_eq!(read(&later).as_ref(), Ok(&expected), "version {version}: {text}");
        }
    }
    // NumPy reads no other version, and a size without a comma is no tuple.
    let mut minor = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8);
    minor[7] = 1;
    assert!(read(&minor).unwrap_err().to_string().contains("version 1.1 of the format"));
    let number = read(&file("{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", 8)).unwrap_err();
    assert!(number.to_string().contains("should have a comma here"), "{number}");
}

#[test]
fn members_of_an_archive_that_are_no_arrays_are_listed() {
    let good = Array::from_slice(&[1.0f32], [1]).unwrap();
    let large = [numpy("<u8", "False", "(1,)"), u64::MAX.to_le_bytes().to_vec()].concat();
    let members = [
        ("w.npy", written(&good)),
        ("complex.npy", [numpy("<c8", "False", "(1,)"), vec![0; 8]].concat()),
        ("dates.npy", [numpy("<M8[D]", "False", "(1,)"), vec![0; 8]].concat()),
        ("fields.npy", file("{'descr':[('a','<f4')],'fortran_order':False,'shape':(1,)}", 4)),
        ("axes.npy", file("{'descr':'<f4','fortran_order':False,'shape':(1,1,1,1,1,1,1,1,1)}", 4)),
        ("large.npy", large),
        ("readme.txt", b"hello".to_vec()),
    ];
    let archive = |members: &[(&str, Vec<u8>)]| {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        for (name, contents) in members {
            let (mut file, config) = archive.new_file(*name).start().unwrap();
            let mut writer = config.wrap(&mut file);
            writer.write_all(contents).unwrap();
            let written = writer.finish().unwrap().1;
            file.finish(written).unwrap();
        }
        archive.finish().unwrap()
    };
    let loaded = read_npz_bytes(&archive(&members), &NpyLimits::default()).unwrap();
    assert_eq!(loaded.arrays, Arrays::from([("w".to_owned(), good)]));
    let skipped: Vec<(&str, &str)> =
        loaded.skipped.iter().map(|skipped| (&*skipped.name, &*skipped.class)).collect();
    let expected = [
        ("complex", "<c8"),
        ("dates", "<M8[D]"),
        ("fields", "structured [('a','<f4')]"),
        ("axes", "array"),
        ("large", "u64"),
        ("readme.txt", "file"),
    ];
    assert_eq!(skipped, expected);
    // Without any array, the first member that could not be read is an error.
    let error = read_npz_bytes(&archive(&members[1..]), &NpyLimits::default()).unwrap_err();
    assert!(matches!(&error, FileError::UnsupportedDType { dtype, .. } if dtype == "<c8"), "{error}");
}

#[test]
fn what_a_header_claims_takes_no_memory_before_it_is_there() {
    let claim = |shape: &str| file(&format!("{{'descr':'<f8','fortran_order':True,'shape':{shape}}}"), 100);
    assert!(matches!(read(&claim("(4000000000,)")), Err(FileError::Truncated { .. })));
    let narrow = file("{'descr':'>i1','fortran_order':False,'shape':(9000000000,)}", 100);
    assert!(matches!(read(&narrow), Err(FileError::Truncated { .. })));
    for huge in ["(18446744073709551615,2)", "(1000000000000,)"] {
        assert!(matches!(read(&claim(huge)), Err(FileError::TooLarge { what: "bytes of elements", .. })));
    }
    let long = [b"\x93NUMPY\x02\x00", &u32::MAX.to_le_bytes()[..]].concat();
    assert!(matches!(read(&long), Err(FileError::TooLarge { offset: 8, what: "bytes of header", .. })));
}

#[test]
fn archives_keep_the_limits_and_name_the_file_inside() {
    let mut file = Vec::new();
    write_npz_to(&mut file, &arrays()).unwrap();
    let few = NpyLimits { arrays: 4, ..NpyLimits::default() };
    assert!(matches!(read_npz_bytes(&file, &few), Err(FileError::TooLarge { what: "arrays", found: 8, .. })));
    // 12 bytes of a and 8 of b; c does not fit any more.
    let small = NpyLimits { data_bytes: 30, ..NpyLimits::default() };
    let error = read_npz_from(io::Cursor::new(&file), "all.npz", &small).unwrap_err();
    assert!(error.to_string().starts_with("all.npz/c.npy: "), "{error}");
    assert!(matches!(read_npz_bytes(b"PK", &few), Err(FileError::Malformed { .. })));
}

#[test]
fn files_cut_or_changed_at_any_byte_keep_every_promise() {
    let truths = [&file("{'descr':'|b1','fortran_order':True,'shape':(2,3)}", 5)[..], &[1]].concat();
    let wider = file("{'descr':'>u2','fortran_order':True,'shape':(2,3)}", 12);
    let unsigned = file("{'descr':'>u8','fortran_order':True,'shape':(2,3)}", 48);
    for file in [truths, wider, unsigned] {
        for end in 0..file.len() {
            fuzz::npy(&file[..end]);
            assert!(read(&file[..end]).is_err(), "a cut file is never taken for a whole one: {end}");
        }
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut changed = file.clone();
                changed[at] ^= 1 << bit;
                fuzz::npy(&changed);
            }
        }
    }
    let archive = include_bytes!("tests/numpy.npz");
    for at in 0..archive.len() {
        fuzz::npz(&archive[..at]);
        let mut changed = archive.to_vec();
        changed[at] ^= 0x41;
        fuzz::npz(&changed);
    }
}
