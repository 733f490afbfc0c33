//! The example `train_digits`: its output, its files and its errors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

use crate::dry_runs::without_times;

fn example() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| crate::built::example("train_digits"))
}

fn run(args: &[&str]) -> Output {
    // No backtrace even if the environment enables one; on the CPU even with a GPU.
    let environment = [("RUST_BACKTRACE", "1"), ("HIGHWATER_DEVICE", "cpu")];
    Command::new(example()).args(args).envs(environment).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Checks that the run ended with exit code 1 and a message that begins with `error: `, and no sign of a panic.
fn failure(output: &Output) -> &str {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("error: "), "{text}");
    assert!(!text.contains("panicked") && !text.to_lowercase().contains("backtrace"), "{text}");
    assert_eq!(stdout(output), "");
    text
}

#[test]
fn it_prints_only_the_tables_without_a_terminal() {
    let short = run(&["--epochs", "1", "--threads", "1"]);
    let (short, output) = (stdout(&short), run(&["--epochs", "1", "--threads", "1", "--full"]));
    assert!(short.lines().count() <= 40 && short.contains("--full"), "{short}");
    assert!(short.contains("\nop  ") && short.contains("\nmodule  "), "{short}");
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
    let text = stdout(&output);
    assert!(text.starts_with("train_digits on cpu:0 with 1 thread, "), "{text}");
    for part in [
        " of 359 test images classified correctly after 23 steps\n",
        "\nop  ",
        "\nforward  ",
        "\nbackward  ",
        "\noptimizer  ",
        "\nlinear  ",
        "\nmodule  ",
        "\n  fc1  ",
        "\npeak in use ",
        "\nfragmentation ",
        "\npeak: ",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn it_learns_in_halves_as_well() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in ["bf16", "f16"] {
        let path = folder.path().join(dtype);
        let output =
            run(&["--epochs", "4", "--dtype", dtype, "--threads", "1", "--json", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(json["test_accuracy"].as_f64().unwrap() > 0.9, "{dtype}");
    }
}

#[test]
fn it_learns_in_mixed_precision() {
    let folder = tempfile::tempdir().unwrap();
    for precision in ["bf16", "f16"] {
        let path = folder.path().join(precision);
        let args =
            ["--epochs", "4", "--precision", precision, "--threads", "1", "--json", path.to_str().unwrap()];
        let output = run(&args);
        assert!(output.status.success(), "{}", stderr(&output));
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(json["test_accuracy"].as_f64().unwrap() > 0.9, "{precision}");
        // The copies of the parameters end with the run.
        let copies =
            json["ops"].as_array().unwrap().iter().find(|row| row["op"] == "cast_parameter").unwrap();
        assert!(copies["total_bytes"].as_u64().unwrap() > 0, "{copies}");
    }
    let refused = run(&["--precision", "f64"]);
    assert!(!refused.status.success() && stderr(&refused).contains("[possible values: bf16, f16, f32]"));
}

#[test]
fn json_has_the_results_and_the_figures_of_each_op() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let args = ["--epochs", "2", "--seed", "3", "--threads", "2", "--json", path.to_str().unwrap()];
    assert!(run(&args).status.success());
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&json["example"], &json["device"]), (&"train_digits".into(), &"cpu:0".into()));
    assert_eq!((&json["seed"], &json["worker_threads"], &json["steps"]), (&3.into(), &2.into(), &46.into()));
    assert!(json["test_accuracy"].as_f64().unwrap() > 0.8);
    assert!(json["final_loss"].as_f64().unwrap() < 1.0);
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    let row_of = |op: &str, phase: &str| {
        let rows = json["ops"].as_array().unwrap();
        rows.iter().find(|row| row["op"] == op && row["phase"] == phase).unwrap().clone()
    };
    // Two of three layers have an activation.
    let layers = [("linear_relu", 2), ("linear", 1)];
    let phases = [("forward", 46 + 2 * 6), ("backward", 46)];
    for ((op, layers), (phase, steps)) in layers.iter().flat_map(|of| phases.map(|steps| (of, steps))) {
        let row = row_of(op, phase);
        assert_eq!(row["calls"], layers * steps);
        assert!(row["total_bytes"].as_u64().unwrap() > row["high_water_bytes"].as_u64().unwrap());
        assert_eq!(row["live_bytes"], 0);
    }
    let live: u64 =
        json["ops"].as_array().unwrap().iter().map(|row| row["live_bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["pools"][0]["in_use"], live + json["unowned_bytes"].as_u64().unwrap());
    assert!(json["peak"]["op"].is_string());
}

#[test]
fn a_dry_run_needs_the_memory_of_the_real_run() {
    let folder = tempfile::tempdir().unwrap();
    let json = |name: &str, extra: &str| -> Value {
        let path = folder.path().join(name);
        let output = run(&["--epochs", "1", "--json", path.to_str().unwrap(), extra]);
        assert!(output.status.success(), "{}", stderr(&output));
        let mut figures = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        without_times(&mut figures);
        figures
    };
    let (dry, real) = (json("dry.json", "--dry-run"), json("real.json", "--device=cpu"));
    assert_eq!(
        (&dry["device"], &dry["test_accuracy"], &dry["final_loss"]),
        (&"dry:0".into(), &Value::Null, &Value::Null)
    );
    assert!(real["peak"]["bytes"].as_u64().unwrap() > 1 << 20);
    for field in ["ops", "scopes", "places", "categories"] {
        assert_eq!(dry[field], real[field], "{field}");
    }
    for field in ["bytes", "op", "scope", "phase"] {
        assert_eq!(dry["peak"][field], real["peak"][field], "{field}");
    }
}

#[test]
fn a_trace_is_written_that_holds_together_plain_and_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = |name: &str| {
        let path = folder.path().join(name);
        assert!(run(&["--epochs", "1", "--trace", path.to_str().unwrap()]).status.success());
        std::fs::read(path).unwrap()
    };
    let plain = trace("run.trace");
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&trace("run.trace.gz")[..]), &mut unpacked)
        .unwrap();
    assert_eq!(plain, unpacked);
    let text = String::from_utf8(plain).unwrap();
    let header = |key: &str| -> u64 {
        let values = text.lines().filter_map(|line| line.strip_prefix("# ")?.strip_prefix(key));
        values.map(|value| value.parse().unwrap()).next().unwrap()
    };
    // The bytes of each live block.
    let mut live: HashMap<&str, u64> = HashMap::new();
    let (mut events, mut sum, mut peak) = (0, 0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["a", block, bytes, _] => {
                let bytes = bytes.parse().unwrap();
                assert_eq!(live.insert(block, bytes), None, "{line}");
                sum += bytes;
            }
            ["f", block] => sum -= live.remove(block).unwrap(),
            _ => panic!("{line}"),
        }
        (events, peak) = (events + 1, sum.max(peak));
    }
    assert!(events > 1000 && text.contains(" fc2.linear_relu:backward\n"), "{events} events");
    assert_eq!((header("events: "), header("peak_live_bytes: ")), (events, peak));
}

#[test]
fn placements_are_told_once_each() {
    let output = run(&["--epochs", "1", "--log-placement", "--device", "cpu"]);
    let lines: Vec<&str> = stderr(&output).lines().collect();
    assert_eq!(lines[0], "device cpu:0: requested");
    assert_eq!(lines.iter().filter(|line| **line == "linear on cpu:0: device of its inputs").count(), 1);
    assert!(lines.contains(&"linear on cpu:0: device of its forward pass"), "{lines:?}");
}

#[test]
fn a_pool_too_small_is_an_error_with_the_whole_report() {
    let output = run(&["--pool", "1"]);
    let text = failure(&output);
    let mut lines = text.lines();
    assert!(lines.next().unwrap().contains("out of memory (exhausted)"), "{text}");
    for part in ["\nout of memory in cpu:0: exhausted", "limit", "1.00 MiB", "held by", "fc2.adamw:optimizer"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_unless_told_otherwise() {
    let bad = ["--epochs", "1", "--learning-rate", "1e30"];
    let text = failure(&run(&bad)).to_owned();
    assert!(text.starts_with("error: the loss is NaN at step 2, epoch 1"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nan.json");
    let output = run(&[&bad[..], &["--allow-nan", "--json", path.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&json["steps"], &json["final_loss"]), (&23.into(), &Value::Null));
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.csv.gz");
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz")).unwrap();
    std::fs::write(&cut, &whole[..1000]).unwrap();
    let (cut, few) = (cut.to_str().unwrap(), folder.path().join("few.csv"));
    std::fs::write(&few, format!("{}\n", [0; 65].map(|pixel| pixel.to_string()).join(","))).unwrap();
    let wide = folder.path().join("wide.csv");
    std::fs::write(&wide, "0,0,0\n".repeat(10)).unwrap();
    for (args, expected) in [
        (["--data", "no/such/file"], "error: no/such/file: "),
        (["--data", cut], "error: "),
        (["--json", "no/such/folder/x.json"], "error: no/such/folder/x.json: "),
        (["--trace", "no/such/folder/x.trace"], "error: no/such/folder/x.trace: "),
        (["--record", "no/such/folder/x.hwm"], "error: no/such/folder/x.hwm: "),
        (["--data", few.to_str().unwrap()], "error: "),
        (
            ["--data", wide.to_str().unwrap()],
            "error: in fc1: linear: shapes [8, 2] and [64, 256] do not match",
        ),
        (["--batch-size", "0"], "error: batches: batch_size must be at least 1, got 0"),
        (["--learning-rate", "NaN"], "error: adamw: lr must be finite and not negative, got NaN"),
        (["--device", "cuda:99"], "error: device cuda:99 cannot be used: "),
    ] {
        let output = run(&args);
        let text = failure(&output);
        assert!(text.starts_with(expected), "{text}");
    }
    assert!(failure(&run(&["--data", few.to_str().unwrap()])).contains("too few images"));
    assert!(failure(&run(&["--data", cut])).contains(&format!("{cut}: the data ends too early")));
}

#[test]
fn options_that_make_no_sense_are_refused_with_a_hint() {
    for args in [
        &["--pool", "0"][..],
        &["--threads", "0"],
        &["--device", "toaster"],
        &["--epochs", "0"],
        &["--dry-run", "--device", "cpu"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains("--help"), "{}", stderr(&output));
    }
    let output = run(&["--help"]);
    let help = stdout(&output);
    assert!(help.contains("--pool <MIB>") && help.contains("Exit codes: 0 after success"), "{help}");
}

/// The first signal saves within an epoch, and the run that continues ends as one without interruption.
#[cfg(unix)]
#[test]
fn a_signal_saves_and_the_run_continues_from_there() {
    use highwater::io::Checkpoint;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let fixed = ["--epochs", "100000", "--batch-size", "200", "--threads", "1"];
    let mut endless = Command::new(example());
    endless.args(fixed).args(["--save", &at("saved"), "--save-every", "1"]).env("HIGHWATER_DEVICE", "cpu");
    let endless = endless.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let begun = std::time::Instant::now();
    while !Path::new(&at("saved")).exists() && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-TERM", &endless.id().to_string()]).status().unwrap().success());
    let output = endless.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains(" steps, interrupted by a signal\n"), "{}", stdout(&output));

    let saved = Checkpoint::load(at("saved")).unwrap();
    let epochs = (saved.step().unwrap() / 8 + 2).to_string();
    let results = |more: &[&str]| -> Value {
        let stop = ["--stop-after", &epochs, "--json", &at("json")];
        assert!(run(&[&fixed[..], &stop, more].concat()).status.success());
        serde_json::from_slice(&std::fs::read(at("json")).unwrap()).unwrap()
    };
    let (whole, resumed) = (results(&[]), results(&["--resume", &at("saved")]));
    for key in ["steps", "final_loss", "test_accuracy"] {
        assert_eq!(whole[key], resumed[key], "{key}");
    }
}
