//! CSV files with named columns, text and missing values.

use std::path::Path;

use highwater_nn::data::{
    ArrayDataset, CsvOptions, DataError, LabelColumn, Missing, TargetColumns, read_csv, read_csv_from,
};
use proptest::prelude::*;

const PETS: &str =
    "id,kind,color,weight,age\n1,dog,red,10,4\n2,cat,blue,4,\n3,cat,red,NA,2\n4,ant,\"a, b\",1,3\n";

fn parse(text: &str, options: &CsvOptions) -> Result<ArrayDataset, DataError> {
    read_csv_from(text.as_bytes(), "x.csv", options)
}

fn message(text: &str, options: &CsvOptions) -> String {
    parse(text, options).unwrap_err().to_string()
}

fn pets() -> CsvOptions {
    CsvOptions::default()
        .with_classes("kind")
        .with_ignored(["id"])
        .with_one_hot(["color"])
        .with_missing(Missing::Mean)
        .with_missing_marks(["NA"])
}

#[test]
fn text_becomes_classes_and_one_hot_features() {
    let data = parse(PETS, &pets()).unwrap();
    assert_eq!(data.class_names(), ["ant", "cat", "dog"]);
    assert_eq!(data.labels(), [2, 1, 1, 0]);
    let names = data.encoding().unwrap().feature_names();
    assert_eq!(names, ["color=a, b", "color=blue", "color=red", "weight", "age"]);
    let expected = [[0., 0., 1., 10., 4.], [0., 1., 0., 4., 3.], [0., 0., 1., 5., 2.], [1., 0., 0., 1., 3.]];
    assert_eq!(data.features(), expected.concat());
    assert_eq!((data.rows(), data.width()), (4, 5));
}

#[test]
fn the_order_of_rows_does_not_change_the_classes() {
    let (header, rows) = PETS.split_once('\n').unwrap();
    let reversed: Vec<&str> = rows.lines().rev().collect();
    let data = parse(&format!("{header}\n{}\n", reversed.join("\n")), &pets()).unwrap();
    let forward = parse(PETS, &pets()).unwrap();
    assert_eq!(data.labels(), [0, 1, 1, 2]);
    assert_eq!(data.encoding(), forward.encoding());
    let backward: Vec<f32> = data.features().chunks(5).rev().flatten().copied().collect();
    assert_eq!(backward, forward.features());
}

#[test]
fn another_file_gets_the_encoding_of_the_first() {
    let train = parse(PETS, &pets()).unwrap();
    let options = pets().with_encoding_of(&train);
    // Other columns, in another order, with fewer categories.
    let test =
        parse("age;x;color;weight;kind\n;9;red;;dog\n7;9;;8;ant\n", &options.clone().with_ignored(["x"]))
            .unwrap();
    assert_eq!((test.labels(), test.class_names()), (&[2, 0][..], train.class_names()));
    assert_eq!(test.features(), [[0., 0., 1., 5., 3.], [0., 0., 0., 8., 7.]].concat());
    let (part, _) = train.split(0.5, 1).unwrap();
    assert_eq!(part.class_names(), train.class_names());
    assert_eq!(
        message("id,kind,color,weight,age\n1,cow,red,1,1\n", &options),
        "x.csv: line 2, column 2 (kind): \"cow\" is not one of ant, cat, dog; add it to the data set that fixes the \
         names, or remove the row"
    );
    let error = message("id,kind,color,weight,age\n1,dog,green,1,1\n", &options);
    assert!(
        error.starts_with("x.csv: line 2, column 3 (color): \"green\" is not one of a, b, blue, red;"),
        "{error}"
    );
    let unnamed = parse("1,2,3\n", &CsvOptions::default()).unwrap();
    let other = CsvOptions::default().with_encoding_of(&unnamed);
    assert_eq!(
        parse("1,2,3,4\n", &other),
        Err(DataError::OtherColumns { path: "x.csv".into(), expected: 2, found: 3 })
    );
}

#[test]
fn fixed_class_names_decide_the_labels() {
    let options = CsvOptions::default().with_classes(LabelColumn::Last).with_class_names(["z", "a", "z"]);
    let data = parse("1,a\n2,z\n", &options).unwrap();
    assert_eq!((data.labels(), data.class_names()), (&[1, 0][..], &["z".to_owned(), "a".to_owned()][..]));
    assert!(message("1,b\n", &options).contains("line 1, column 2: \"b\" is not one of z, a;"));
}

#[test]
fn classes_that_are_numbers_are_sorted_by_value() {
    let data = parse("10,1\n9,2\nx,3\n10,4\n", &CsvOptions::default().with_classes(0_usize)).unwrap();
    assert_eq!((data.class_names().join(" "), data.labels()), ("9 10 x".to_owned(), &[1, 0, 2, 1][..]));
}

#[test]
fn missing_values_are_filled_on_request() {
    let text = "a,b\n1,\n,4\n3,5\n";
    let options = CsvOptions::default().with_header(true).with_label(LabelColumn::None);
    let features =
        |missing| parse(text, &options.clone().with_missing(missing)).map(|data| data.features().to_vec());
    assert_eq!(features(Missing::Mean).unwrap(), [1.0, 4.5, 2.0, 4.0, 3.0, 5.0]);
    assert_eq!(features(Missing::Constant(-1.0)).unwrap(), [1.0, -1.0, -1.0, 4.0, 3.0, 5.0]);
    assert_eq!(
        features(Missing::Error).unwrap_err().to_string(),
        "x.csv: line 2, column 2 (b): the value is missing in row 1; `CsvOptions::with_missing` fills missing features"
    );
    assert_eq!(
        message("a,b\n1,\n2,\n", &options.clone().with_missing(Missing::Mean)),
        "x.csv: column 2 (b): all values are missing, so there is no mean to fill in; ignore the column or fill it with a \
         constant"
    );
}

#[test]
fn a_missing_label_or_target_is_always_an_error() {
    let options = CsvOptions::default().with_missing(Missing::Constant(0.0)).with_missing_marks(["NA"]);
    for options in [
        options.clone(),
        options.clone().with_classes(LabelColumn::Last),
        options.clone().with_targets(TargetColumns::Last(1)),
    ] {
        for text in ["1,\n", "1,NA\n"] {
            assert_eq!(
                message(text, &options),
                "x.csv: line 1, column 2: the value is missing in row 1; remove the row"
            );
        }
    }
}

#[test]
fn columns_are_found_by_name() {
    let text = "a,b,c,d\n1,2,3,4\n5,6,7,8\n";
    let cases = [
        (CsvOptions::default().with_label("b"), vec![1., 3., 4., 5., 7., 8.], vec![2, 6], vec![]),
        (CsvOptions::default().with_targets(["d", "a"]), vec![2., 3., 6., 7.], vec![], vec![4., 1., 8., 5.]),
        (
            CsvOptions::default().with_label("a").with_features(["d", "b"]),
            vec![4., 2., 8., 6.],
            vec![1, 5],
            vec![],
        ),
        (CsvOptions::default().with_label("a").with_ignored(["c", "d"]), vec![2., 6.], vec![1, 5], vec![]),
    ];
    for (options, features, labels, targets) in cases {
        let data = parse(text, &options).unwrap();
        assert_eq!(
            (data.features(), data.labels(), data.targets()),
            (&features[..], &labels[..], &targets[..])
        );
    }
}

#[test]
fn columns_that_do_not_fit_their_role_are_named() {
    let text = "a,b,b\n1,2,3\n";
    let default = CsvOptions::default;
    let cases = [
        (default().with_label("c"), "x.csv: no column is named \"c\"; the columns are a, b, b"),
        (
            default().with_label("b"),
            "x.csv: column 3 (b): two columns have this name; name columns by their index",
        ),
        (
            default().with_label("a").with_features(["a"]),
            "x.csv: column 1 (a): the column is a feature, and also text, ignored, a label or a target",
        ),
        (
            default().with_ignored(["a"]).with_one_hot(["a"]),
            "x.csv: column 1 (a): the column is one-hot, but not a feature",
        ),
        (
            default().with_ignored([3_usize]),
            "x.csv: expected an ignored column in column 4, but the file has 3 columns",
        ),
        (
            default().with_label("a").with_ignored([1_usize, 2]),
            "x.csv: all 3 columns are labels, targets or ignored; leave at least one for features",
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(message(text, &options), expected);
    }
}

#[test]
fn text_in_place_of_a_number_comes_with_advice() {
    let header = CsvOptions::default().with_header(true);
    let cases = [
        (
            "a,b\n1,2\n",
            CsvOptions::default(),
            "x.csv: line 1, column 1: expected a finite number, found \"a\"; if the first line has the names of the \
             columns, use `CsvOptions::with_header(true)`",
        ),
        (
            "a,b\nred,2\n",
            header.clone(),
            "x.csv: line 2, column 1 (a): expected a finite number, found \"red\"; columns of text may be read as text \
             (`CsvOptions::with_text`), ignored (`with_ignored`) or one-hot (`with_one_hot`)",
        ),
        (
            "a,b\n1,2\nNA,2\n",
            header.clone(),
            "x.csv: line 3, column 1 (a): expected a finite number, found \"NA\"; `CsvOptions::with_missing_marks` lists \
             texts that stand for missing values",
        ),
        (
            "a,b\n1,dog\n",
            header,
            "x.csv: line 2, column 2 (b): expected a whole number as the label, found \"dog\"; \
             `CsvOptions::with_classes` reads text as classes",
        ),
    ];
    for (text, options, expected) in cases {
        assert_eq!(message(text, &options), expected);
    }
    let bytes = b"1,\xff\n";
    let error = read_csv_from(&bytes[..], "x.csv", &CsvOptions::default().with_classes(1_usize)).unwrap_err();
    assert!(
        matches!(error, DataError::BadField { line: 1, column: 2, expected: "text in UTF-8", .. }),
        "{error}"
    );
}

#[test]
fn delimiters_are_detected_or_given() {
    for delimiter in [',', ';', '\t', '|'] {
        let text = format!("\n1{delimiter}\"2\"{delimiter}3\n");
        assert_eq!(parse(&text, &CsvOptions::default()).unwrap().features(), [1.0, 2.0], "{delimiter:?}");
    }
    let options = CsvOptions::default().with_delimiter(b'|').with_classes(LabelColumn::Last);
    assert_eq!(parse("1|a,b,c,d\n", &options).unwrap().class_names(), ["a,b,c,d"]);
}

#[test]
fn categories_and_their_features_are_limited() {
    let text = "a,1\nb,2\nc,3\n";
    let options =
        CsvOptions { max_categories: 3, max_values: 9, ..CsvOptions::default() }.with_one_hot([0_usize]);
    assert_eq!(parse(text, &options).unwrap().width(), 3);
    let few = CsvOptions { max_categories: 2, ..options.clone() };
    assert_eq!(message(text, &few), "x.csv: line 3: more than the 2 categories in a column allowed");
    let classes = CsvOptions { max_categories: 2, ..CsvOptions::default() }.with_classes(LabelColumn::First);
    assert_eq!(message(text, &classes), "x.csv: line 3: more than the 2 categories in a column allowed");
    let few = CsvOptions { max_values: 8, ..options };
    assert_eq!(message(text, &few), "x.csv: line 3: more than the 8 numbers allowed");
}

#[test]
fn the_fruit_have_four_kinds_and_missing_values() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/fruit.csv");
    let options = CsvOptions::default().with_classes("fruit").with_ignored(["id"]).with_one_hot(["origin"]);
    let Err(error) = read_csv(&path, &options) else { panic!("no value is missing") };
    if !path.exists() {
        // A packaged crate stands alone, without the data of the repository.
        return;
    }
    assert!(matches!(error, DataError::MissingValue { .. }), "{error}");
    let data = read_csv(&path, &options.with_missing(Missing::Mean)).unwrap();
    assert_eq!(data.class_names(), ["apple", "lemon", "orange", "pear"]);
    assert_eq!((data.rows(), data.width()), (400, 9));
    assert!((0..4).all(|class| data.labels().iter().filter(|&&label| label == class).count() > 80));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_table_of_text_keeps_every_promise(
        bytes in prop::collection::vec(prop::sample::select(&b"0123ab.,;-\n\n\r\"x \xc3\xa9"[..]), 0..120)
    ) {
        highwater_nn::fuzz::csv(&bytes);
    }
}

/// A table as pandas writes it: the first column is the index, without a name.
const PANDAS: &str = include_str!("../cases/pandas_index.csv");

#[test]
fn a_header_that_was_read_as_a_row_is_named() {
    const HEADER: &str =
        "if the first line has the names of the columns, use `CsvOptions::with_header(true)`";
    let hint =
        |text: &str, options: &CsvOptions| message(text, options).split_once("; ").unwrap().1.to_owned();
    let label = |label| CsvOptions::default().with_label(label);
    let all = [LabelColumn::None, LabelColumn::Last, LabelColumn::First, LabelColumn::Index(1)];
    for options in all.map(label) {
        assert_eq!(hint(PANDAS, &options), HEADER, "{options:?}");
        // With the label of a program, an index of several columns, and text in the label's column.
        for text in [",,loss,auc\n0,0,1,2\n", ",loss,\n0,0.25,1\n", "\"\",a,b\n0,1,2\n", ";a;b\n0;1;2\n"] {
            assert_eq!(hint(text, &options), HEADER, "{text} {options:?}");
        }
    }
    let targets = CsvOptions::default().with_targets(TargetColumns::Last(1));
    assert_eq!(hint(PANDAS, &targets), HEADER);
    assert!(
        message("1,auc\n0,1\n", &targets).ends_with("expected a finite number as a target, found \"auc\"")
    );
    let with_header = CsvOptions::default().with_header(true).with_label(LabelColumn::None);
    let data = parse(PANDAS, &with_header).unwrap();
    assert_eq!(data.features(), [0.0, 0.25, 0.5, 1.0, 0.125, 0.75]);

    // Numbered columns may also be a row whose first value is missing.
    let none = label(LabelColumn::None);
    let both = hint(",0,1\n0,0.25,0.5\n", &none);
    assert!(both.contains("`CsvOptions::with_missing` fills") && both.ends_with(HEADER), "{both}");
    // Numbers in the first row, and later rows, are missing values.
    for text in ["1,,3\n", "1,2,3\n,5,6\n", "0,1,2\n,a,b\n"] {
        assert_eq!(hint(text, &none), "`CsvOptions::with_missing` fills missing features", "{text}");
    }
    let named = CsvOptions::default().with_header(true).with_label(LabelColumn::None);
    assert_eq!(hint("a,b\n,x\n", &named), "`CsvOptions::with_missing` fills missing features");
}

const REVIEWS: &str = "id,stars,review,title\n7,5,\"Good, \"\"cheap\"\"\", A \n8,1,,B\n9,3,é\u{202e},\n";

fn reviews() -> CsvOptions {
    CsvOptions::default().with_label("stars").with_text(["title", "review"])
}

#[test]
fn columns_of_text_stay_with_their_rows() {
    let data = parse(REVIEWS, &reviews()).unwrap();
    assert_eq!((data.width(), data.features(), data.labels()), (1, &[7.0, 8.0, 9.0][..], &[5, 1, 3][..]));
    assert_eq!(data.encoding().unwrap().feature_names(), ["id"]);
    assert_eq!(data.texts("review").unwrap(), ["Good, \"cheap\"", "", "é\u{202e}"]);
    assert_eq!(data.texts(3).unwrap(), ["A", "B", ""]);
    let (train, test) = data.split(0.34, 1).unwrap();
    let mut together: Vec<_> = [&train, &test]
        .into_iter()
        .flat_map(|part| part.labels().iter().copied().zip(part.texts("title").unwrap().iter().cloned()))
        .collect();
    together.sort_unstable();
    assert_eq!(together, [(1, "B".to_owned()), (3, String::new()), (5, "A".to_owned())]);
}

#[test]
fn a_table_may_have_text_and_no_features() {
    let options = reviews().with_ignored(["id"]);
    let data = parse(REVIEWS, &options).unwrap();
    assert_eq!((data.rows(), data.width(), data.features().len()), (3, 0, 0));
    let without_names = CsvOptions::default().with_text([0_usize]);
    let data = parse("a,0\nb,1\n", &without_names).unwrap();
    assert_eq!((data.texts(0).unwrap(), data.labels()), (&["a".to_owned(), "b".to_owned()][..], &[0, 1][..]));
    // Another file, with the encoding of the first.
    let again =
        parse("review,title,stars\nx,y,2\n", &options.with_ignored::<&str>([]).with_encoding_of(&data));
    assert_eq!(again.unwrap().texts("review").unwrap(), ["x"]);
}

#[test]
fn errors_of_text_columns_say_what_to_do() {
    let texts = |data: &ArrayDataset, name: &str| data.texts(name).unwrap_err().to_string();
    let data = parse(REVIEWS, &reviews()).unwrap();
    assert_eq!(
        texts(&data, "reviews"),
        "texts: column must be a column of text, got \"reviews\"; the text columns are \"title\", \"review\""
    );
    let plain = parse("1,2\n", &CsvOptions::default()).unwrap();
    assert_eq!(
        texts(&plain, "a"),
        "texts: column must be a column of text, got \"a\"; `CsvOptions::with_text` reads columns of text"
    );
    let twice =
        "x.csv: column 2 (stars): the column is text, and also ignored, a label or a target, or text twice";
    assert_eq!(message(REVIEWS, &CsvOptions::default().with_label("stars").with_text(["stars"])), twice);
    assert_eq!(
        message(REVIEWS, &reviews().with_features(["title"])),
        "x.csv: column 4 (title): the column is a feature, and also text, ignored, a label or a target"
    );
    let invalid = read_csv_from(&b"a,b\n\xff,1\n"[..], "x.csv", &CsvOptions::default().with_text(["a"]));
    assert!(matches!(invalid, Err(DataError::BadField { expected: "text in UTF-8", .. })));
}

#[test]
fn texts_count_toward_the_limit_of_values() {
    // A text of three bytes counts as 7 values; the first row has 8 with its feature, and the second as many.
    let text = "0,abc,1\n0,abc,1\n";
    let options = |max_values| CsvOptions { max_values, ..CsvOptions::default() }.with_text([1_usize]);
    assert_eq!(parse(text, &options(16)).unwrap().rows(), 2);
    assert_eq!(message(text, &options(15)), "x.csv: line 2: more than the 15 numbers allowed");
}
