//! `--log` of the training examples: one JSON line per step. And `--resume`.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use highwater::io::{SafetensorsLimits, read_safetensors};
use highwater::tracking::{Recording, RecordingLimits, TrainingLog, TrainingLogLimits, write_page};
use serde_json::Value;

/// A program whose default device is the CPU, even with a GPU.
fn on_cpu(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("HIGHWATER_DEVICE", "cpu");
    command
}

fn run(example: &str, args: &[&str]) -> Output {
    let output =
        on_cpu(&crate::built::example(example)).args(args).args(["--threads", "1"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs the example with a log, checks the common fields and returns the lines.
fn logged(example: &str, args: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("run.jsonl");
    run(example, &[args, &["--log", log.to_str().unwrap()]].concat());
    let lines = lines(&log);
    for (step, line) in (lines[0]["step"].as_u64().unwrap()..).zip(&lines) {
        assert_eq!(line["step"], step);
        assert!(line["seconds"].as_f64().unwrap() >= 0.0 && line["learning_rate"].is_number(), "{line}");
        assert!(line["bytes_in_use"].as_u64() <= line["peak_bytes_in_use"].as_u64(), "{line}");
    }
    lines
}

#[test]
fn every_training_example_logs_loss_time_and_memory() {
    let small = ["--layers", "1", "--width", "8", "--heads", "1", "--steps", "3", "--batch-size", "2"];
    let chargpt = [&small[..], &["--sample", "0", "--tokens", "bytes"]].concat();
    for (example, args, steps) in [
        ("linear_regression", &["--steps", "5"][..], 5),
        ("train_chargpt", &chargpt, 3),
        ("checkpointed_transformer", &small, 3),
        ("train_digits", &["--epochs", "1", "--batch-size", "500"], 3),
        ("autoencoder", &["--epochs", "1", "--batch-size", "500"], 3),
    ] {
        let lines = logged(example, args);
        assert_eq!(lines.len(), steps, "{example}");
        assert!(lines.iter().all(|line| line["loss"].as_f64().is_some()), "{example}");
        let dry = logged(example, &[args, &["--dry-run"]].concat());
        assert_eq!(dry.len(), steps, "{example}");
        assert!(dry.iter().all(|line| line["loss"].is_null()), "{example}");
    }
}

#[test]
fn a_loss_that_is_nan_is_logged_and_the_page_warns() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("run.jsonl");
    let diverging = ["--epochs", "1", "--batch-size", "500", "--learning-rate", "1e30", "--allow-nan"];
    run("train_digits", &[&diverging[..], &["--log", log.to_str().unwrap()]].concat());
    assert_eq!(lines(&log)[2]["loss"], "NaN");
    let read = TrainingLog::read(BufReader::new(File::open(&log).unwrap()), &TrainingLogLimits::default());
    assert_eq!(read.unwrap().non_finite().map(|first| first.name.as_str()), Some("loss"));

    run("train_digits", &["--epochs", "2", "--batch-size", "500", "--log", log.to_str().unwrap()]);
    assert!(lines(&log)[0]["test_accuracy"].is_null());
    let read = TrainingLog::read(BufReader::new(File::open(&log).unwrap()), &TrainingLogLimits::default());
    assert_eq!(read.unwrap().non_finite(), None);
}

#[test]
fn the_test_loss_is_logged_periodically_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (text, json) = (folder.path().join("text"), folder.path().join("json"));
    std::fs::write(&text, "to be, or not to be. ".repeat(40)).unwrap();
    let small = ["--layers", "1", "--width", "8", "--heads", "1", "--batch-size", "2", "--context", "8"];
    let files = ["--text", text.to_str().unwrap(), "--json", json.to_str().unwrap(), "--sample", "0"];
    let args = [&small[..], &files, &["--steps", "5", "--validate-every", "2"]].concat();
    let lines = logged("train_chargpt", &args);
    let measured: Vec<bool> = lines.iter().map(|line| line["validation_loss"].is_number()).collect();
    assert_eq!(measured, [false, true, false, true, true]);
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(lines[4]["validation_loss"], results["test_loss"]);
}

#[test]
fn a_page_shows_curves_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let small = ["--epochs", "1", "--batch-size", "500", "--html"];
    run("autoencoder", &[&small[..], &[&at("alone.html")]].concat());
    let files = [&at("beside.html"), "--record", &at("run.hwm"), "--log", &at("run.jsonl")];
    run("autoencoder", &[&small[..], &files].concat());
    // The page contains both files.
    let file = |name: &str| BufReader::new(File::open(at(name)).unwrap());
    let recording = Recording::read(file("run.hwm"), &RecordingLimits::default()).unwrap();
    let log = TrainingLog::read(file("run.jsonl"), &TrainingLogLimits::default()).unwrap();
    let curves: Vec<&str> = log.curves().iter().map(|curve| curve.name.as_str()).collect();
    assert!(curves.contains(&"loss") && curves.contains(&"validation_loss"), "{curves:?}");
    let mut expected = Vec::new();
    write_page(&recording, Some(&log), &mut expected).unwrap();
    assert!(std::fs::read(at("beside.html")).unwrap() == expected);
    // Also without the files, and for a dry run, which has no losses.
    run("autoencoder", &[&small[..], &[&at("dry.html"), "--dry-run"]].concat());
    for name in ["alone.html", "dry.html"] {
        let page = std::fs::read_to_string(at(name)).unwrap();
        assert!(page.trim_end().ends_with("</html>") && page.contains("autoencoder"), "{name}");
        assert!(2 * page.len() > expected.len(), "{name}");
    }
}

#[test]
fn the_help_of_every_example_that_trains_has_what_all_have() {
    for example in [
        "linear_regression",
        "train_digits",
        "train_mnist",
        "train_chargpt",
        "autoencoder",
        "checkpointed_transformer",
    ] {
        let output = run(example, &["--help"]);
        let help = String::from_utf8(output.stdout).unwrap();
        for option in [
            "--save <FILE>",
            "--save-every <N>",
            "--resume <FILE>",
            "--device <",
            "--dry-run[=<PROFILE>]",
            "--pool <MIB>",
            "--seed <N>",
            "--json <FILE>",
            "--html <FILE.html>",
            "--log <FILE.jsonl>",
            "--record <FILE.hwm>",
        ] {
            assert!(help.contains(option), "{example} has no {option}:\n{help}");
        }
        // The example's own description comes first in the help.
        let first = help.lines().next().unwrap();
        assert!(first.ends_with('.') || first.len() > 20, "{example}: {first}");
    }
}

#[test]
fn standard_output_is_refused_where_a_file_is_to_be_written() {
    let example = crate::built::example("linear_regression");
    for option in ["--save", "--json", "--html", "--log", "--record", "--trace", "--oom-report"] {
        let output = on_cpu(&example).args([option, "-", "--steps", "1"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("./-"), "{option}: {error}");
    }
}

#[test]
fn a_line_trained_in_two_parts_is_that_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let results = |name: &str, args: &[&str]| -> Value {
        run("linear_regression", &[args, &["--json", &at(name)]].concat());
        serde_json::from_slice(&std::fs::read(at(name)).unwrap()).unwrap()
    };
    let whole = results("whole", &["--steps", "20"]);
    results("half", &["--steps", "9", "--save", &at("line")]);
    let resumed = results("rest", &["--steps", "20", "--resume", &at("line")]);
    assert!(whole["slope"].as_f64().is_some());
    for key in ["slope", "offset"] {
        assert_eq!(whole[key], resumed[key], "{key}");
    }
    let log = logged("linear_regression", &["--steps", "20", "--resume", &at("line")]);
    assert_eq!((log.len(), &log[0]["step"]), (11, &Value::from(9)));
}

#[test]
fn a_run_that_is_killed_goes_on_from_what_it_saved_last() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut endless = Command::new(crate::built::example("linear_regression"))
        .args(["--steps", "1000000000", "--threads", "1", "--save-every", "3", "--save", &at("line")])
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !Path::new(&at("line")).exists() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    endless.kill().unwrap();
    endless.wait().unwrap();
    let saved = read_safetensors(at("line"), &SafetensorsLimits::default()).unwrap();
    let done: u64 = saved.metadata["steps"].parse().unwrap();
    assert!(done > 0 && done.is_multiple_of(3), "{done}");
    let steps = (done + 4).to_string();
    let results = |name: &str, args: &[&str]| -> Value {
        run("linear_regression", &[args, &["--steps", &steps, "--json", &at(name)]].concat());
        serde_json::from_slice(&std::fs::read(at(name)).unwrap()).unwrap()
    };
    let (whole, resumed) = (results("whole", &[]), results("rest", &["--resume", &at("line")]));
    for key in ["slope", "offset"] {
        assert_eq!(whole[key], resumed[key], "{key}");
    }
    // An interval needs a file.
    let example = crate::built::example("linear_regression");
    assert!(!Command::new(example).args(["--save-every", "3"]).output().unwrap().status.success());
}

#[test]
fn a_line_goes_through_points_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let points: Vec<String> =
        (-20..=20).map(|i| f64::from(i) / 20.0).map(|x| format!("{x},{}", 2.0 * x - 1.0)).collect();
    std::fs::write(at("points.csv"), points.join("\n")).unwrap();
    run("linear_regression", &["--points", &at("points.csv"), "--json", &at("line")]);
    let line: Value = serde_json::from_slice(&std::fs::read(at("line")).unwrap()).unwrap();
    for (name, expected) in [("slope", 2.0), ("offset", -1.0)] {
        assert!((line[name].as_f64().unwrap() - expected).abs() < 1e-3, "{name}: {line}");
    }
}

#[test]
fn points_without_x_and_y_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("points.csv");
    std::fs::write(&file, "1,2,3\n").unwrap();
    let mut command = on_cpu(&crate::built::example("linear_regression"));
    let output = command.arg("--points").arg(&file).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{error}");
    assert!(error.contains("points.csv: expected x and y in each line"), "{error}");
}

#[test]
fn a_network_that_was_trained_in_two_parts_is_that_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let results = |example: &str, args: &[&str]| -> Value {
        run(example, &[args, &["--json", &at("json")]].concat());
        serde_json::from_slice(&std::fs::read(at("json")).unwrap()).unwrap()
    };
    let digits =
        |args: &[&str]| results("train_digits", &[&["--epochs", "3", "--batch-size", "200"], args].concat());
    // The latter with a loss scaler.
    for dtype in ["f32", "f16"] {
        let whole = digits(&["--dtype", dtype]);
        digits(&["--dtype", dtype, "--stop-after", "1", "--save", &at("digits"), "--save-every", "1"]);
        let resumed = digits(&["--dtype", dtype, "--resume", &at("digits")]);
        for key in ["steps", "final_loss", "test_accuracy"] {
            assert_eq!(whole[key], resumed[key], "{key} in {dtype}");
        }
    }
    let pictures =
        |args: &[&str]| results("autoencoder", &[&["--epochs", "3", "--batch-size", "200"], args].concat());
    let whole = pictures(&[]);
    pictures(&["--stop-after", "1", "--save", &at("pictures")]);
    let resumed = pictures(&["--resume", &at("pictures")]);
    assert!(whole["validation_loss"].as_f64().is_some_and(|loss| loss < 0.15), "{whole}");
    for key in ["steps", "final_loss", "validation_loss"] {
        assert_eq!(whole[key], resumed[key], "{key}");
    }
    let transformer = |args: &[&str]| {
        let small = ["--layers", "2", "--width", "8", "--heads", "1", "--batch-size", "2"];
        results("checkpointed_transformer", &[&small, args].concat())["final_loss"].clone()
    };
    let whole = transformer(&["--steps", "4"]);
    transformer(&["--steps", "2", "--save", &at("transformer")]);
    // A run with checkpoints continues without them.
    assert_eq!(transformer(&["--steps", "4", "--plain", "--resume", &at("transformer")]), whole);
}

#[test]
fn what_comes_back_of_pictures_is_drawn_below_them() {
    let folder = tempfile::tempdir().unwrap();
    let (path, none) = (folder.path().join("digits.png"), folder.path().join("none.png"));
    let small = ["--epochs", "3", "--batch-size", "64", "--picture"];
    run("autoencoder", &[&small, &[path.to_str().unwrap()][..]].concat());
    let mut reader = png::Decoder::new(BufReader::new(File::open(&path).unwrap())).read_info().unwrap();
    let mut dots = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut dots).unwrap();
    // 16 pictures per row: the originals, and the reconstructions before training and after 1 and 2 epochs.
    assert_eq!((info.width, info.height), (16 * 60 + 4, 5 * 60 + 12));
    let row = |number: usize| {
        let top = 4 + number * 60 + if number > 0 { 8 } else { 0 };
        dots[top * info.width as usize..][..56 * info.width as usize].to_vec()
    };
    let difference = |a: Vec<u8>, b: Vec<u8>| -> u64 {
        a.iter().zip(b).map(|(&a, b)| u64::from(a.abs_diff(b)).pow(2)).sum()
    };
    assert!(2 * difference(row(0), row(4)) < difference(row(0), row(1)), "training brings nothing");

    run("autoencoder", &[&small, &[none.to_str().unwrap(), "--dry-run"][..]].concat());
    assert!(!none.exists(), "a dry run has nothing to draw");
}

#[test]
fn a_file_that_is_no_line_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other");
    std::fs::write(&file, [2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}']).unwrap();
    let file = file.to_str().unwrap();
    let output =
        on_cpu(&crate::built::example("linear_regression")).args(["--resume", file]).output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains(file) && message.contains("no number of steps"), "{message}");
}

/// Writes images and labels in MNIST's format, 30 of them.
fn write_images(folder: &Path) {
    let (rows, size) = (30_u32, 28 * 28);
    let head = |kind: &[u32]| {
        let sizes = kind.iter().flat_map(|size| size.to_be_bytes());
        [&[0, 0, 8, kind.len() as u8][..], &sizes.collect::<Vec<_>>()].concat()
    };
    let pixels: Vec<u8> = (0..rows as usize * size).map(|pixel| (pixel * 7 % 251) as u8).collect();
    let digits: Vec<u8> = (0..rows as u8).map(|row| row % 10).collect();
    let write = |name, bytes: Vec<u8>| std::fs::write(folder.join(name), bytes).unwrap();
    write("t-images-idx3-ubyte", [head(&[rows, 28, 28]), pixels].concat());
    write("t-labels-idx1-ubyte", [head(&[rows]), digits].concat());
}

/// The losses of two epochs of `train_mnist` on the images in a folder.
fn mnist_losses(folder: &Path, args: &[&str]) -> Vec<Value> {
    let fixed = [folder.to_str().unwrap(), "--epochs", "2", "--batch-size", "8"];
    let lines = logged("train_mnist", &[&fixed, args].concat());
    lines.into_iter().map(|mut line| line["loss"].take()).collect()
}

#[test]
fn cropped_prefetched_images_train_reproducibly() {
    let folder = tempfile::tempdir().unwrap();
    write_images(folder.path());
    let saved = folder.path().join("saved");
    let losses = |args: &[&str]| mnist_losses(folder.path(), args);
    let (plain, cropped) = (losses(&[]), losses(&["--crop", "2"]));
    assert_eq!(plain.len(), 6);
    assert_ne!(plain, cropped);
    let saved = saved.to_str().unwrap();
    let first = losses(&["--crop", "2", "--stop-after", "1", "--save", saved]);
    let rest = losses(&["--crop", "2", "--resume", saved]);
    assert_eq!(cropped, [first, rest].concat());
}

#[test]
fn a_resnet_resumes_from_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    write_images(folder.path());
    let saved = folder.path().join("saved");
    let saved = saved.to_str().unwrap();
    let resnet = |args: &[&str]| mnist_losses(folder.path(), &[&["--network", "resnet"], args].concat());
    let whole = resnet(&[]);
    assert_eq!(whole.len(), 6);
    assert_ne!(whole, mnist_losses(folder.path(), &[]));
    let first = resnet(&["--stop-after", "1", "--save", saved]);
    let rest = resnet(&["--resume", saved]);
    assert_eq!(whole, [first, rest].concat());
}
