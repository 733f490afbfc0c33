//! CSV files, good and bad.

use std::io::{self, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use highwater_nn::data::{
    ArrayDataset, CsvOptions, DataError, LabelColumn, TargetColumns, read_csv, read_csv_from,
};
use proptest::prelude::*;

fn parse(text: &str) -> Result<ArrayDataset, DataError> {
    parse_with(text, &CsvOptions::default())
}

fn parse_with(text: &str, options: &CsvOptions) -> Result<ArrayDataset, DataError> {
    read_csv_from(text.as_bytes(), "x.csv", options)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn message(result: Result<ArrayDataset, DataError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_number() {
    let text = "\u{feff}1.5,0\n2,1\n";
    for bytes in [text.as_bytes(), &gzip(text.as_bytes())] {
        let data = read_csv_from(bytes, "marked.csv", &CsvOptions::default()).unwrap();
        assert_eq!((data.features(), data.labels()), (&[1.5, 2.0][..], &[0, 1][..]));
    }
}

#[test]
fn the_digits_have_1797_images_in_ten_classes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/digits.csv.gz");
    let Ok(data) = read_csv(&path, &CsvOptions::default()) else {
        // A packaged crate stands alone, without the data of the repository.
        assert!(!path.exists(), "{} is there but cannot be read", path.display());
        return;
    };
    assert_eq!((data.rows(), data.width()), (1797, 64));
    assert!(data.features().iter().all(|pixel| (0.0..=16.0).contains(pixel)));
    assert!((0..10).all(|class| data.labels().iter().filter(|&&label| label == class).count() > 150));
}

#[test]
fn the_label_may_be_any_column_or_none() {
    let columns = [
        (LabelColumn::Last, vec![1.0, 2.0, 4.0, 5.0], vec![3, 6]),
        (LabelColumn::First, vec![2.0, 3.0, 5.0, 6.0], vec![1, 4]),
        (LabelColumn::Index(1), vec![1.0, 3.0, 4.0, 6.0], vec![2, 5]),
        (LabelColumn::None, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![]),
    ];
    for (label, features, labels) in columns {
        let data = parse_with("1,2,3\n4,5,6\n", &CsvOptions::default().with_label(label.clone())).unwrap();
        assert_eq!((data.features(), data.labels()), (&features[..], &labels[..]), "{label:?}");
    }
}

#[test]
fn targets_may_be_any_columns_in_any_order() {
    let columns = [
        (TargetColumns::Last(1), vec![1.0, 2.0, 4.0, 5.0], vec![3.5, -6.0]),
        (TargetColumns::Last(2), vec![1.0, 4.0], vec![2.0, 3.5, 5.0, -6.0]),
        (TargetColumns::First(1), vec![2.0, 3.5, 5.0, -6.0], vec![1.0, 4.0]),
        (TargetColumns::First(2), vec![3.5, -6.0], vec![1.0, 2.0, 4.0, 5.0]),
        (TargetColumns::Indices(vec![2, 0]), vec![2.0, 5.0], vec![3.5, 1.0, -6.0, 4.0]),
        (TargetColumns::Last(0), vec![1.0, 2.0, 3.5, 4.0, 5.0, -6.0], vec![]),
    ];
    for (targets, features, expected) in columns {
        let options = CsvOptions::default().with_targets(targets.clone());
        let data = parse_with("1,2,3.5\n4,5,-6\n", &options).unwrap();
        assert_eq!((data.features(), data.targets()), (&features[..], &expected[..]), "{targets:?}");
        assert_eq!((data.rows(), data.target_width(), data.labels()), (2, expected.len() / 2, &[][..]));
    }
}

#[test]
fn label_and_targets_take_each_others_place() {
    let options = CsvOptions::default().with_targets(TargetColumns::First(1));
    assert_eq!(parse_with("1,2\n", &options).unwrap().targets(), [1.0]);
    let data = parse_with("1,2\n", &options.with_label(LabelColumn::Last)).unwrap();
    assert_eq!((data.targets(), data.labels()), (&[][..], &[2][..]));
}

#[test]
fn a_bad_target_is_named_with_file_line_and_column() {
    let parse = |text| message(parse_with(text, &CsvOptions::default().with_targets(TargetColumns::Last(2))));
    let bad = "x.csv: line 2, column 3: expected a finite number as a target, found \"inf\"";
    assert_eq!(parse("1,2,3\n4,5,inf\n"), bad);
    assert_eq!(parse("1\n"), "x.csv: expected a target in column 2, but the file has 1 columns");
    let options = CsvOptions::default().with_targets(TargetColumns::Indices(vec![0, usize::MAX]));
    assert!(matches!(parse_with("1,2\n", &options), Err(DataError::NoColumn { column: usize::MAX, .. })));
}

#[test]
fn a_file_whose_columns_are_all_answers_is_refused_by_its_name() {
    let refused = |columns| Err(DataError::NoFeatures { path: "x.csv".into(), columns });
    assert_eq!(parse("1\n2\n"), refused(1));
    assert_eq!(
        message(parse("1\n")),
        "x.csv: all 1 columns are labels, targets or ignored; leave at least one for features"
    );
    for (targets, columns) in [(TargetColumns::Last(2), 2), (TargetColumns::Indices(vec![1, 0, 1]), 2)] {
        assert_eq!(parse_with("1,2\n", &CsvOptions::default().with_targets(targets)), refused(columns));
    }
    // Where the delimiter is another one, the field says more.
    assert!(message(parse("1:2:0\n")).contains("expected a whole number as the label, found \"1:2:0\""));
    // Without a label the lone column is a feature.
    let data = parse_with("1\n2\n", &CsvOptions::default().with_label(LabelColumn::None)).unwrap();
    assert_eq!((data.width(), data.features()), (1, &[1.0, 2.0][..]));
}

#[test]
fn targets_count_as_numbers() {
    let options = CsvOptions { max_values: 4, ..CsvOptions::default() }.with_targets(TargetColumns::Last(1));
    assert_eq!(parse_with("1,2\n3,4\n", &options).unwrap().rows(), 2);
    let error = message(parse_with("1,2\n3,4\n5,6\n", &options));
    assert_eq!(error, "x.csv: line 3: more than the 4 numbers allowed");
}

#[test]
fn headers_spaces_quotes_and_line_ends_are_skipped() {
    let text = "\u{feff}a;b;label\r\n\r\n 1.5 ;\"-2e1\"; 3\r\n\r\n0;0;-1";
    let data = parse_with(text, &CsvOptions { header: true, delimiter: Some(b';'), ..CsvOptions::default() })
        .unwrap();
    assert_eq!((data.features(), data.labels()), (&[1.5, -20.0, 0.0, 0.0][..], &[3, -1][..]));
}

#[test]
fn a_bad_field_is_named_with_file_line_and_column() {
    assert_eq!(
        message(parse("1,2,3\n4,x5,6\n")),
        "x.csv: line 2, column 2: expected a finite number, found \"x5\""
    );
    let label = message(parse("1,2,3\n\n4,5,6.5\n"));
    assert_eq!(label, "x.csv: line 3, column 3: expected a whole number as the label, found \"6.5\"");
    assert_eq!(
        message(parse("1,,3\n")),
        "x.csv: line 1, column 2: the value is missing in row 1; `CsvOptions::with_missing` fills missing features"
    );
}

#[test]
fn lines_are_counted_the_same_for_both_kinds_of_line_end() {
    for end in ["\n", "\r\n"] {
        let text = format!("h,i{end}{end}1,2{end}3,4{end}{end}{end}bad,6{end}");
        let error = parse_with(&text, &CsvOptions::default().with_header(true)).unwrap_err();
        assert!(matches!(error, DataError::BadField { line: 7, column: 1, .. }), "{error}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    for bad in ["nan", "inf", "-inf", "1e39", "0x10", "1_000", "١"] {
        let error = parse(&format!("{bad},0\n")).unwrap_err();
        assert!(matches!(error, DataError::BadField { line: 1, column: 1, .. }), "{error}");
    }
}

#[test]
fn a_long_bad_field_is_repeated_in_part() {
    let DataError::BadField { found, .. } = parse(&format!("{},0\n", "é".repeat(1000))).unwrap_err() else {
        panic!("a field of letters was taken for a number");
    };
    assert_eq!(found, "é".repeat(40));
}

#[test]
fn a_line_with_more_or_fewer_columns_is_refused() {
    assert_eq!(message(parse("1,2\n3\n")), "x.csv: line 2 has 1 columns, but the preceding lines have 2");
    assert_eq!(message(parse("1,2\n3,4,5\n")), "x.csv: line 2 has 3 columns, but the preceding lines have 2");
}

#[test]
fn no_rows_are_an_error_with_and_without_a_header() {
    for text in ["", "\n\n"] {
        assert_eq!(message(parse(text)), "x.csv: the file contains no data");
    }
    let header = CsvOptions::default().with_header(true);
    assert_eq!(parse_with("a,b\n", &header), Err(DataError::Empty { path: "x.csv".into() }));
}

#[test]
fn a_label_column_that_is_not_there_is_an_error() {
    let options = CsvOptions::default().with_label(LabelColumn::Index(2));
    let error = message(parse_with("1,2\n", &options));
    assert_eq!(error, "x.csv: expected the label in column 3, but the file has 2 columns");
}

#[test]
fn each_limit_is_exact_and_named_in_its_error() {
    let text = "1,2\n3,4\n5,6\n";
    let fits =
        CsvOptions { max_rows: 3, max_columns: 2, max_values: 3, max_line_bytes: 4, ..CsvOptions::default() };
    assert_eq!(parse_with(text, &fits).unwrap().rows(), 3);
    let cases = [
        (CsvOptions { max_rows: 2, ..fits.clone() }, "x.csv: line 3: more than the 2 rows allowed"),
        (CsvOptions { max_columns: 1, ..fits.clone() }, "x.csv: line 1: more than the 1 columns allowed"),
        (CsvOptions { max_values: 2, ..fits.clone() }, "x.csv: line 3: more than the 2 numbers allowed"),
        (CsvOptions { max_line_bytes: 3, ..fits }, "x.csv: line 1: more than the 3 bytes in a line allowed"),
    ];
    for (options, expected) in cases {
        assert_eq!(message(parse_with(text, &options)), expected);
    }
}

#[test]
fn lines_without_a_row_are_limited_wherever_they_stand() {
    let options = CsvOptions { max_idle_lines: 2, ..CsvOptions::default() };
    for text in ["\n\n1,2\n3,4\n", "\n1,2\n\n3,4\n", "1,2\n3,4\n\r\n\n"] {
        assert_eq!(parse_with(text, &options).unwrap().rows(), 2, "{text:?}");
    }
    let with_header = options.clone().with_header(true);
    for (text, options, line) in [
        ("\n\n\n1,2\n", &options, 4),
        ("1,2\n\n\n\n3,4\n", &options, 5),
        ("1,2\n\n\n\n", &options, 4),
        ("a,b\n\n\n1,2\n", &with_header, 4),
    ] {
        let expected = format!("x.csv: line {line}: more than the 2 lines without a row allowed");
        assert_eq!(message(parse_with(text, options)), expected, "{text:?}");
    }
}

#[test]
fn data_without_an_end_is_refused_instead_of_filling_the_memory() {
    let endless_line = io::repeat(b'1');
    let endless_quote = "1,2\n\"".as_bytes().chain(io::repeat(b'\n'));
    for source in [Box::new(endless_line) as Box<dyn Read>, Box::new(endless_quote)] {
        let error = read_csv_from(source, "x.csv", &CsvOptions::default()).unwrap_err();
        assert!(matches!(error, DataError::TooLarge { what: "bytes in a line", .. }), "{error}");
    }
}

#[test]
fn multi_member_gzip_data_is_recognized() {
    let plain = parse("1,2\n3,4\n").unwrap();
    let members = [gzip(b"1,2\n"), gzip(b"3,4\n")].concat();
    assert_eq!(read_csv_from(&members[..], "x.csv", &CsvOptions::default()).unwrap(), plain);
}

#[test]
fn a_compressed_file_cut_anywhere_is_an_error() {
    let text: String = (0..200).map(|row| format!("{row},{},1\n", row * row)).collect();
    let whole = gzip(text.as_bytes());
    let read = |bytes: &[u8]| read_csv_from(bytes, "cut.gz", &CsvOptions::default());
    assert_eq!(read(&whole).unwrap().rows(), 200);
    for length in 2..whole.len() {
        assert_eq!(read(&whole[..length]), Err(DataError::Truncated { path: "cut.gz".into() }), "{length}");
    }
    assert_eq!(
        message(read(&whole[..whole.len() / 2])),
        "cut.gz: the data ends too early: the file is truncated"
    );
}

#[test]
fn a_wrong_checksum_is_an_error() {
    let mut bytes = gzip(b"1,2\n3,4\n");
    let checksum = bytes.len() - 8;
    bytes[checksum] ^= 1;
    let error = read_csv_from(&bytes[..], "bad.gz", &CsvOptions::default()).unwrap_err();
    assert!(matches!(error, DataError::Damaged { .. }), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = read_csv("no/such/file.csv", &CsvOptions::default()).unwrap_err();
    assert!(matches!(error, DataError::Io { kind: io::ErrorKind::NotFound, .. }));
    assert!(error.to_string().starts_with("no/such/file.csv: "), "{error}");
}

/// A source that fails after a while, as a disk or a connection may.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::Error::other("unplugged")) } else { self.0.read(buffer) }
    }
}

#[test]
fn a_source_that_fails_on_the_way_is_an_error() {
    assert_eq!(
        message(read_csv_from(Failing(b"1,2\n3,4"), "x.csv", &CsvOptions::default())),
        "x.csv: unplugged"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_an_error_or_whole_rows_of_finite_numbers(
        bytes in prop::collection::vec(prop::sample::select(&b"0123456789.,-e\n\r\"x \x1f\x8b\xff"[..]), 0..200)
    ) {
        if let Ok(data) = read_csv_from(&bytes[..], "x.csv", &CsvOptions::default()) {
            prop_assert!(data.rows() > 0);
            prop_assert_eq!(data.features().len(), data.rows() * data.width());
            prop_assert_eq!(data.labels().len(), data.rows());
            prop_assert!(data.features().iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn what_was_written_is_read_back(
        rows in prop::collection::vec((any::<f32>().prop_filter("finite", |x| x.is_finite()), any::<i64>()), 1..50)
    ) {
        let text: String = rows.iter().map(|(feature, label)| format!("{feature},{label}\n")).collect();
        let data = read_csv_from(&gzip(text.as_bytes())[..], "x.csv", &CsvOptions::default()).unwrap();
        let (features, labels): (Vec<f32>, Vec<i64>) = rows.into_iter().unzip();
        prop_assert_eq!((data.features(), data.labels()), (&features[..], &labels[..]));
    }
}

#[test]
fn files_changed_at_any_byte_keep_every_promise() {
    for file in ["1,2.5,0\n-3,1e3,1\n", "\"1\",2\n\n3,4", "a,b\n1,2\n"] {
        for at in 0..file.len() {
            highwater_nn::fuzz::csv(&file.as_bytes()[..at]);
            for bit in 0..8 {
                let mut changed = file.as_bytes().to_vec();
                changed[at] ^= 1 << bit;
                highwater_nn::fuzz::csv(&changed);
            }
        }
    }
}
