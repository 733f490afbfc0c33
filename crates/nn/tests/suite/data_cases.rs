//! Data files that other programs write (`tests/cases`), and files of other kinds.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_nn::data::{
    CsvOptions, DataError, IdxArray, IdxOptions, Text, read_csv, read_csv_from, read_idx,
};
use highwater_nn::io::Array;

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

fn gzip(bytes: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn labels_written_as_floats_are_classes() {
    let data = read_csv(case("floatlabel.csv"), &CsvOptions::default()).unwrap();
    assert_eq!((data.labels(), data.features()), (&[0, 1][..], &[1.0, 2.0, 3.0, 4.0][..]));
    let read =
        |label: &str| read_csv_from(format!("1,{label}\n").as_bytes(), "x.csv", &CsvOptions::default());
    assert_eq!(read("-3.0").unwrap().labels(), [-3]);
    assert_eq!(read("1e3").unwrap().labels(), [1000]);
    assert_eq!(read("9223372036854775807").unwrap().labels(), [i64::MAX]);
    for bad in ["0.5", "nan", "inf", "1e300", "cat"] {
        assert!(matches!(read(bad), Err(DataError::BadField { column: 2, .. })), "{bad}");
    }
}

#[test]
fn a_missing_value_is_an_error_with_row_and_column() {
    let options = CsvOptions::default().with_header(true);
    let fill = "`CsvOptions::with_missing` fills missing features";
    for (text, line, row, column, hint) in [
        ("a,b,c\n1,2,3\n\n4,,6\n", 4, 2, "2 (b)", fill),
        ("a,b,c\n1,2,\n", 2, 1, "3 (c)", "remove the row"),
        ("a,b,c\n \t,2,3\n", 2, 1, "1 (a)", fill),
    ] {
        let error = read_csv_from(text.as_bytes(), "x.csv", &options).unwrap_err();
        let expected =
            format!("x.csv: line {line}, column {column}: the value is missing in row {row}; {hint}");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn byte_order_marks_are_skipped() {
    for text in ["\u{feff}1,2\n3,4\n", "\u{feff}\"1\",2\n3,4\n"] {
        for bytes in [text.as_bytes().to_vec(), gzip(text.as_bytes(), Compression::fast())] {
            let data = read_csv_from(&bytes[..], "x.csv", &CsvOptions::default()).unwrap();
            assert_eq!((data.features(), data.labels()), (&[1.0, 3.0][..], &[2, 4][..]), "{text}");
        }
    }
    let text = Text::read_from("\u{feff}ab".as_bytes(), "x.txt", 100).unwrap();
    assert_eq!(text.alphabet().as_deref(), Some("ab"));
    let empty = Text::read_from("\u{feff}".as_bytes(), "x.txt", 100);
    assert_eq!(empty, Err(DataError::Empty { path: "x.txt".into() }));
}

#[test]
fn text_in_utf_16_is_named() {
    let bytes: Vec<u8> = "\u{feff}1,2\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let errors = [
        read_csv_from(&bytes[..], "x", &CsvOptions::default()).unwrap_err(),
        Text::read_from(&bytes[..], "x", 100).unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        assert!(error.starts_with("x: this is text in UTF-16, not"), "{error}");
        assert!(error.ends_with("save it as UTF-8"), "{error}");
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    let pointer = std::fs::read(case("lfs.pt")).unwrap();
    let archive = std::fs::read(case("objmix.npz")).unwrap();
    let page = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>";
    for (bytes, kind) in [
        (&pointer[..], "a Git LFS pointer to a file of 12345 bytes"),
        (&archive, "a zip archive"),
        (page, "an HTML page"),
        (b"\x80\x04\x95\x00", "a Python pickle"),
    ] {
        let csv = read_csv_from(bytes, "x", &CsvOptions::default()).unwrap_err().to_string();
        assert!(csv.starts_with(&format!("x: this is {kind}, not a CSV file: ")), "{csv}");
        let idx = IdxArray::read_from(bytes, "x", &IdxOptions::default()).unwrap_err().to_string();
        assert!(idx.contains(&format!("this is {kind}, not an IDX file: ")), "{idx}");
    }
}

#[test]
fn a_git_lfs_pointer_is_no_text() {
    let error = Text::read(case("lfs.pt"), 1 << 20).unwrap_err().to_string();
    assert!(
        error.contains("this is a Git LFS pointer to a file of 12345 bytes, not the text itself"),
        "{error}"
    );
}

#[test]
fn a_column_of_labels_can_be_chosen() {
    let labels = case("qmnist-labels-idx2-int");
    let array = IdxArray::read(&labels, &IdxOptions::default()).unwrap();
    let count: Vec<i32> = (0..16).collect();
    assert_eq!(array.array(), &Array::from_slice(&count, [2, 8]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    std::fs::write(&images, [&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 1][..], &[5, 6]].concat()).unwrap();
    for (column, expected) in [(0, [0, 8]), (3, [3, 11]), (7, [7, 15])] {
        let data = read_idx(&images, &labels, &IdxOptions { label_column: column, ..IdxOptions::default() })
            .unwrap();
        assert_eq!((data.labels(), data.features()), (&expected[..], &[5.0, 6.0][..]));
    }
    let error =
        read_idx(&images, &labels, &IdxOptions { label_column: 8, ..IdxOptions::default() }).unwrap_err();
    assert_eq!(error, DataError::NoColumn { path: labels, what: "the label", column: 9, columns: 8 });
}

#[test]
fn dense_compressed_tables_are_read() {
    // One-hot rows of zeros and ones, of which gzip makes very little.
    let row = |class: usize| {
        let fields: Vec<&str> = (0..784).map(|column| if column == class { "1" } else { "0" }).collect();
        format!("{},{class}\n", fields.join(","))
    };
    let text: String = (0..10_000).map(|index| row(index % 10)).collect();
    let data = read_csv_from(&gzip(text.as_bytes(), Compression::best())[..], "x", &CsvOptions::default());
    assert_eq!(data.unwrap().rows(), 10_000);
}

#[test]
fn the_ratio_of_a_compressed_table_is_limited() {
    let text = "0,0\n".repeat((64 << 20) / 4 + 10_000);
    let compressed = gzip(text.as_bytes(), Compression::fast());
    let read = |ratio| {
        read_csv_from(&compressed[..], "x", &CsvOptions { max_ratio: ratio, ..CsvOptions::default() })
    };
    assert_eq!(read(100), Err(DataError::TooDense { path: "x".into(), ratio: 100 }));
    assert_eq!(read(2000).unwrap().rows(), (64 << 20) / 4 + 10_000);
}
