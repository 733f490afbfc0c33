//! `highwater pack` as a user calls it, and the replay of its packing.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

/// Best fit cannot know that the first block is freed soon, and needs more than the 4,096 bytes live at the peak.
const TRACE: &str = "a 0 1024 short\na 1 2048 long\nf 0\na 2 2048 long\nf 1\nf 2\n";

fn highwater(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_packing_takes_the_least_possible_and_a_replay_follows_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, packing) = (path("trace"), path("packing"));
    fs::write(&trace, TRACE).unwrap();

    let output = highwater(&["pack", &trace, "-o", &packing, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["blocks"], &summary["packed_blocks"]), (&3.into(), &3.into()));
    assert_eq!((&summary["capacity_bytes"], &summary["lower_bound_bytes"]), (&4096.into(), &4096.into()));
    assert_eq!((&summary["trace"], &summary["packing"]), (&trace.clone().into(), &packing.clone().into()));

    for arguments in [&["--packing", &*packing][..], &[]] {
        let replay =
            [&["replay", &trace, "--policy", "packed,bfc", "--find-min", "--json"], arguments].concat();
        let output = highwater(&replay);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(rows[0]["smallest_pool_bytes"], 4096);
        assert_eq!(rows[0]["peak_reserved_bytes"], 4096, "a growing pool begins with the packing's range");
        assert!(rows[1]["smallest_pool_bytes"].as_u64().unwrap() > 4096);
    }
    // Earlier names of the policy and of the format.
    let earlier = fs::read_to_string(&packing).unwrap().replace("highwater-packing", "highwater-plan");
    fs::write(&packing, earlier).unwrap();
    let output = highwater(&["replay", &trace, "--policy", "planned", "--packing", &packing, "--json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&rows[0]["policy"], &rows[0]["packed_allocations"]), (&"packed".into(), &3.into()));

    let output = highwater(&["pack", &trace, "-o", &packing]);
    assert!(text(&output.stdout).contains("3 of 3 blocks in 4.00 KiB, 1.0000 times the lower bound"));
}

#[test]
fn a_packing_of_one_step_takes_little_more_than_best_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, packing) = (path("trace"), path("packing"));
    // 24 weights, which no step frees, and steps with two blocks of 2 MiB.
    let mut events: String = (0..24).map(|weight| format!("a {weight} 65536 weight\n")).collect();
    for step in 0..20 {
        let (one, two) = (2 * step + 24, 2 * step + 25);
        events += &format!("a {one} 2097152 x\na {two} 2097152 y\nf {one}\nf {two}\n");
    }
    fs::write(&trace, events).unwrap();
    let output = highwater(&["pack", &trace, "-o", &packing, "--step", "repeating"]);
    assert!(text_of(&output).contains("2 of 2 blocks in 4.00 MiB"), "{}", text_of(&output));

    let replay = ["replay", &trace, "--policy", "bfc,packed", "--packing", &packing, "--repeat", "1"];
    let output = highwater(&[&replay[..], &["--json"]].concat());
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reserved = |row: usize| rows[row]["peak_reserved_bytes"].as_u64().unwrap();
    // Regions that double, from the range of the packing on, would take 12.1 MiB.
    assert_eq!(reserved(0), 6 << 20);
    assert!(reserved(1) <= (6 << 20) + (66 << 10), "{}", reserved(1));
    let (packed, beside) = (&rows[1]["packed_allocations"], &rows[1]["allocations_beside_packing"]);
    assert_eq!((packed, beside), (&40.into(), &24.into()));
    assert_eq!(rows[0].get("packed_allocations"), None);
    let output = text_of(&highwater(&replay));
    let note = "trace, packed: 40 allocations followed the packing, and 24 took memory beside its range\n";
    assert!(output.contains(note), "{output}");
    // A packing of the whole trace leaves none.
    let output = text_of(&highwater(&["replay", &trace, "--policy", "packed", "--repeat", "1"]));
    assert!(!output.contains("beside"), "{output}");
}

fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn packing_errors_have_their_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, bad, packing, nowhere) =
        (path("trace"), path("bad"), path("packing"), path("no/such/folder"));
    fs::write(&trace, TRACE).unwrap();
    fs::write(&bad, "f 1\n").unwrap();
    for (arguments, code, message) in [
        (&["pack", &bad, "-o", &packing][..], 2, "bad: line 1: no allocation 1 is live"),
        (&["pack", &trace, "-o", &nowhere], 1, "folder: "),
        (
            &["pack", &trace, "-o", &packing, "--step", "repeating"],
            1,
            "trace: no part of the trace is repeated",
        ),
        (
            &["pack", &trace, "-o", &packing, "--step", "2..9"],
            1,
            "events 2..9 are not in a trace of 6 events",
        ),
        (
            &["pack", &trace, "-o", &packing, "--step", "some"],
            2,
            "expected whole, repeating, FROM..TO in events, or marks:FROM..TO",
        ),
        (&["pack", &trace], 2, "--output"),
        (&["replay", &trace, "--packing", &trace], 2, "trace: line 1: expected"),
    ] {
        let output = highwater(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

#[test]
fn granules_and_exact_sizes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (example, packing) = (path("input.12.csv"), path("packing"));
    let csv = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";
    fs::write(&example, csv).unwrap();
    let capacity = |trace: &str, arguments: &[&str]| {
        let output = highwater(&[&["pack", trace, "-o", &packing, "--json"], arguments].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        (summary["capacity_bytes"].clone(), summary["waste"].clone())
    };
    assert_eq!(capacity(&example, &[]), (12.into(), 1.0.into()));
    assert_eq!(capacity(&example, &["--granule", "4"]), (12.into(), 1.0.into()));
    assert_eq!(capacity(&example, &["--granule", "256"]), (768.into(), 1.0.into()));

    let aligned = path("aligned.csv");
    fs::write(&aligned, "id,lower,upper,size,alignment\na,0,10,100,4096\nb,0,10,100,4096\n").unwrap();
    assert_eq!(capacity(&aligned, &["--granule", "1"]), (4196.into(), 1.0.into()));
    let file = fs::read_to_string(&packing).unwrap();
    assert!(file.starts_with("highwater-packing 2\n"), "{file}");
    let output = highwater(&["replay", &aligned, "--policy", "packed", "--packing", &packing, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let gaps = path("gaps.csv");
    fs::write(&gaps, "id,lower,upper,size,gaps,note\na,0,10,4,2-8,x\nb,2,8,4,,\n").unwrap();
    assert_eq!(capacity(&gaps, &[]), (4.into(), 1.0.into()));
    let output = highwater(&["pack", &gaps, "-o", &packing]);
    assert!(text(&output.stderr).contains("gaps.csv: skipped the column \"note\""), "{output:?}");

    let packed = ["replay", &example, "--policy", "packed", "--granule", "4", "--repeat", "1", "--json"];
    let rows: Value = serde_json::from_slice(&highwater(&packed).stdout).unwrap();
    assert_eq!(rows[0]["peak_in_use_bytes"], 12, "{rows}");
    for arguments in [
        &["replay", &example, "--granule", "4"][..],
        &["replay", &example, "--policy", "packed", "--granule", "3"],
        &["pack", &example, "-o", &packing, "--granule", "3"],
    ] {
        assert_eq!(highwater(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
