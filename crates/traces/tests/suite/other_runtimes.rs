//! Files that other tools wrote, with the figures that these tools print. `tests/data/runtimes` has the programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use highwater_traces::{ExportFormat, ReadOptions, Trace, TraceLimits, export, read_recording};
use highwater_tracking::{OpRow, Phase, Recording, Report, ReportDiff};

const JAX_BEFORE: &[u8] = include_bytes!("../data/runtimes/jax-before.prof");
const JAX_AFTER: &[u8] = include_bytes!("../data/runtimes/jax-after.prof");
const HEAPTRACK_50: &[u8] = include_bytes!("../data/runtimes/heaptrack-50.gz");
const MTRACE: &[u8] = include_bytes!("../data/runtimes/mtrace.log");
const HEAPTRACK_60: &[u8] = include_bytes!("../data/runtimes/heaptrack-60.gz");
const MEMRAY: &[u8] = include_bytes!("../data/runtimes/memray.csv");
const RMM: &[u8] = include_bytes!("../data/runtimes/rmm-26.10.csv");
const PROFILER: &[u8] = include_bytes!("../data/runtimes/pytorch-profiler.json.gz");
const TIMELINE: &[u8] = include_bytes!("../data/runtimes/pytorch-timeline.raw.json.gz");
const TIMELINE_OF_SUMS: &[u8] = include_bytes!("../data/runtimes/pytorch-timeline.json");
const PROFILE_SNAPSHOT: &[u8] = include_bytes!("../data/runtimes/pytorch-profile.pickle");

fn run(file: &[u8]) -> Recording {
    read_recording(file, &ReadOptions::default()).unwrap()
}

fn report(file: &[u8]) -> Report {
    Report::from_recording(&run(file))
}

fn refusal(file: &[u8]) -> String {
    read_recording(file, &ReadOptions::default()).unwrap_err().to_string()
}

/// The peak of a file as a recording, which is that of its trace.
fn peak(file: &[u8]) -> u64 {
    let peak = run(file).peak().unwrap().bytes;
    assert_eq!(Trace::read(file, &ReadOptions::default()).unwrap().peak_live_bytes(), peak);
    peak
}

/// The holders of the peak with their bytes, the largest first.
fn holders(report: &Report) -> Vec<(String, u64)> {
    let mut rows: Vec<&OpRow> = report.places.iter().filter(|row| row.peak_bytes > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.peak_bytes));
    rows.into_iter().map(|row| (row.path(), row.peak_bytes)).collect()
}

/// The extensions of the programs that made the files, and of the table.
const SOURCES: &[&str] = &["md", "c", "cpp", "py"];

/// `scripts/check-traces` reads the same table.
#[test]
fn files_have_the_peaks_that_the_table_states() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runtimes");
    let table = fs::read_to_string(folder.join("README.md")).unwrap();
    let row = |line: &str| {
        let (file, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((file.to_owned(), rest.split_once(" |")?.0.to_owned()))
    };
    let mut rows: BTreeMap<String, String> = table.lines().filter_map(row).collect();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.extension().is_some_and(|extension| SOURCES.contains(&extension.to_str().unwrap())) {
            continue;
        }
        let expected =
            rows.remove(name).unwrap_or_else(|| panic!("{name}: add a row to the README beside it"));
        let read = read_recording(&fs::read(&path).unwrap()[..], &ReadOptions::default());
        let found =
            read.map(|run| run.peak().map_or(0, |peak| peak.bytes)).map_err(|error| error.to_string());
        if expected == "refused" {
            assert!(found.is_err(), "{name}");
        } else {
            assert_eq!(found, Ok(expected.replace(',', "").parse().unwrap()), "{name}");
        }
    }
    assert!(rows.is_empty(), "rows without a file: {rows:?}");
}

#[test]
fn profiles_of_jax_have_the_bytes_of_the_live_arrays() {
    // The sums of `nbytes` that the program prints.
    assert_eq!((peak(JAX_BEFORE), peak(JAX_AFTER)), (1_572_864, 3_149_728));
    let (before, after) = (report(JAX_BEFORE), report(JAX_AFTER));
    let weights = "<module>.main.make_weights.<listcomp> jax_profiles.py:8";
    assert_eq!(holders(&before), [(weights.to_owned(), 1_572_864)]);
    assert_eq!(before.live[0].blocks, 3);
    assert_eq!(run(JAX_BEFORE).pools()[0].name, "cpu:0");

    let diff = ReportDiff::between(&before, &after);
    let growth =
        |row: &highwater_tracking::Change<OpRow>| (row.after.path(), row.of(|row| row.peak_bytes).growth());
    let rows: Vec<_> = diff.places.iter().map(growth).collect();
    let activations = "<module>.main.make_activations.<listcomp> jax_profiles.py:12";
    let extra = "<module>.main jax_profiles.py:20";
    assert_eq!(rows, [(activations.to_owned(), 1_572_864), (extra.to_owned(), 4000)]);
}

#[test]
fn data_of_heaptrack_has_the_printed_figures() {
    // heaptrack_print: "calls to allocation functions", "peak heap memory consumption", "total memory leaked".
    for (file, calls, most, leaked) in
        [(HEAPTRACK_50, 154, "191.70K", "50.00K"), (HEAPTRACK_60, 184, "201.70K", "50.00K")]
    {
        let printed = |bytes: u64| format!("{:.2}K", bytes as f64 / 1000.0);
        let report = report(file);
        assert_eq!(report.run.as_ref().unwrap().blocks, calls);
        assert_eq!(printed(peak(file)), most);
        assert_eq!(printed(report.live_bytes()), leaked);
    }
    let report = report(HEAPTRACK_50);
    let found = holders(&report);
    assert_eq!(found[1], ("main.make_table heap.c:6".to_owned(), 64_000));
    assert_eq!(found[2], ("main.work.make_buffer heap.c:10".to_owned(), 55_000));
    assert_eq!(report.run.unwrap().facts.program, "./heap 50");
    let leak = report.live.iter().map(|row| (row.path(), row.bytes)).collect::<Vec<_>>();
    assert_eq!(leak, [("main heap.c:25".to_owned(), 50_000)]);
}

#[test]
fn a_table_of_memray_has_the_peak_of_its_statistics() {
    // `peak_memory` of `memray stats --json`.
    assert_eq!(peak(MEMRAY), 1_539_358);
    let table = ("<module>.main.make_table python_heap.py:5".to_owned(), 1_500_002);
    assert_eq!(holders(&report(MEMRAY))[0], table);
}

#[test]
fn a_log_of_rmm_has_the_peak_of_its_statistics() {
    // `get_bytes_counter().peak` of the statistics_resource_adaptor below the log.
    assert_eq!(peak(RMM), 1_150_496);
    let report = report(RMM);
    assert_eq!((report.live_bytes(), report.ops.len()), (0, 2));
    let run = report.run.unwrap();
    assert!((1..1_000_000_000).contains(&run.duration_ns), "{}", run.duration_ns);
}

#[test]
fn files_of_the_pytorch_profiler_agree_with_its_sums() {
    // The highest "Total Allocated" of the events, and the highest sum of the timeline of sums.
    assert_eq!(peak(PROFILER), 11_696);
    assert_eq!(peak(TIMELINE), 25_560);
    assert_eq!(peak(PROFILE_SNAPSHOT), 25_560);
    assert_eq!(holders(&report(PROFILER))[0], ("aten::mm".to_owned(), 9472));

    let timeline = report(TIMELINE);
    let of = |name: &str| timeline.categories.iter().find(|row| row.category == name).unwrap().peak_bytes;
    // Two linear layers: 64 × 32 + 32 + 32 × 10 + 10 values of four bytes, and as many gradients.
    assert_eq!([of("parameter"), of("gradient")], [4 * (64 * 32 + 32 + 32 * 10 + 10); 2]);
    let message = "event 0 of device 0: sums over time, without blocks: call export_memory_timeline with a path that ends with \
        .raw.json.gz";
    assert_eq!(refusal(TIMELINE_OF_SUMS), message);
}

#[test]
fn a_log_of_mtrace_has_the_leak_that_mtrace_prints() {
    assert_eq!(peak(MTRACE), 114_000);
    assert_eq!((report(MTRACE).live_bytes(), run(MTRACE).events().len()), (0xc350, 65));
}

#[test]
fn phases_that_a_file_does_not_contain_are_unknown() {
    let files =
        [JAX_AFTER, HEAPTRACK_50, MEMRAY, RMM, PROFILER, TIMELINE, PROFILE_SNAPSHOT, b"a 0 10 aten::mm\n"];
    for file in files {
        let report = report(file);
        let phases: Vec<(Phase, f64)> = report.phases.iter().map(|row| (row.phase, row.peak_share)).collect();
        assert_eq!(phases.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), [Phase::Unknown]);
        assert!((phases[0].1 - 1.0).abs() < 1e-9);
        assert!(report.live.iter().all(|row| row.phase == Phase::Unknown));
        let text = report.to_string();
        assert!(text.contains("\nunknown ") && !text.contains("\nforward "), "{text}");
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains("\"phase\":\"unknown\"") && !json.contains("\"forward\""), "{json}");
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap().phases[0].phase, Phase::Unknown);
        // Exports keep that, in all formats that can be read again.
        let mut profile = Vec::new();
        export(&run(file), ExportFormat::Pprof, &mut profile).unwrap();
        assert_eq!(self::report(&profile).phases.len(), 1);
        assert_eq!(self::report(&profile).phases[0].phase, Phase::Unknown);
    }
}

#[test]
fn one_label_with_a_phase_makes_the_others_forward() {
    let text = "a 0 100 net.fc1.matmul\na 1 50 net.fc1.matmul:backward\na 2 7 adamw:optimizer\n";
    let phases = |file: &[u8]| report(file).phases.iter().map(|row| row.phase).collect::<Vec<_>>();
    let all = [Phase::Forward, Phase::Backward, Phase::Optimizer];
    assert_eq!(phases(text.as_bytes()), all);
    // Exports have the same labels.
    for format in [ExportFormat::Pprof, ExportFormat::MemoryVizJson, ExportFormat::MemoryViz] {
        let mut file = Vec::new();
        export(&run(text.as_bytes()), format, &mut file).unwrap();
        assert_eq!(phases(&file), all, "{format}");
    }
    // A row of an unknown phase is compared with one of the forward phase.
    let diff = ReportDiff::between(&report(b"a 0 80 net.fc1.matmul\n"), &report(text.as_bytes()));
    let growth: Vec<_> =
        diff.places.iter().map(|row| (row.after.path(), row.of(|row| row.peak_bytes).growth())).collect();
    let row = |path: &str, bytes| (path.to_owned(), bytes);
    let expected = [row("net.fc1.matmul:backward", 50), row("net.fc1.matmul", 20), row("adamw:optimizer", 7)];
    assert_eq!(growth, expected);
}

#[test]
fn a_label_of_another_tool_states_its_own_phase_only() {
    let table = b"id,lower,upper,size\nx:backward,0,5,10\ny,0,5,20\n";
    let phases: Vec<_> = report(table).places.iter().map(|row| (row.op.clone(), row.phase)).collect();
    assert!(phases.contains(&("y".to_owned(), Phase::Unknown)), "{phases:?}");
    let frame = |name: &str| format!(r#"[{{"name":"{name}","filename":"op","line":0}}]"#);
    let event = |name: &str, at: u32| {
        format!(r#"{{"action":"alloc","addr":{at},"size":9,"stream":0,"frames":{}}}"#, frame(name))
    };
    let events = [event("relu:backward", 16), event("relu", 32)].join(",");
    let snapshot = format!(r#"{{"device_traces":[[{events}]],"segments":[],"allocator_settings":{{}}}}"#);
    let report = report(snapshot.as_bytes());
    assert!(report.phases.iter().all(|row| row.phase != Phase::Forward), "{:?}", report.phases);
}

#[test]
fn deep_stacks_keep_their_innermost_frames() {
    // A library's frames between those of the user do not count.
    let mut file = "v 10550 3\ns e /usr/lib/lib.so\ni 1 1\n".to_owned();
    let (mut stacks, depths) = (0, [0, 1, 254, 255, 256, 257, 299_usize]);
    for frame in 0..300 {
        file += &format!("s 4 f{frame:03}\ni 1 0 {:x}\nt {:x} {stacks:x}\n", frame + 2, frame + 2);
        stacks += 1;
        if frame % 7 == 0 {
            file += &format!("t 1 {stacks:x}\n");
            stacks += 1;
        }
        // Callees come after their callers.
        if let Some(kind) = depths.iter().position(|&depth| depth == frame) {
            file += &format!("a 10 {stacks:x}\n+ {kind:x}\n");
        }
    }
    let run = run(file.as_bytes());
    assert_eq!(run.blocks().len(), depths.len());
    for (frame, block) in depths.into_iter().zip(run.blocks()) {
        let lineage = run.lineage(block.owner);
        let names: Vec<_> = lineage.iter().map(|&owner| run.owner(owner).name.as_str()).collect();
        let expected: Vec<_> =
            (frame.saturating_sub(255)..=frame).map(|frame| format!("f{frame:03}")).collect();
        assert_eq!(names, expected, "{frame}");
    }
}

#[test]
fn stacks_of_a_long_name_have_one_holder() {
    let file = include_bytes!("../data/heaptrack-long-name.gz");
    let report = report(file);
    let name = "n".repeat(200);
    assert_eq!(report.ops.len(), 1);
    assert_eq!(report.ops[0].op, format!("{name} {name}:1"));
    assert_eq!(report.run.as_ref().unwrap().blocks, 200);
}

#[test]
fn long_paths_lose_their_middle_and_stay_distinct() {
    // Two stacks of 200 frames that differ in the middle only.
    let stack = |middle: &str| {
        let name = |frame: usize| if frame == 100 { middle.to_owned() } else { format!("frame{frame:03}") };
        (0..200).map(|frame| format!("{};a.py;{}", name(frame), frame + 1)).collect::<Vec<_>>().join("|")
    };
    let header = "allocator,num_allocations,size,tid,thread_name,stack_trace\n";
    let file = format!("{header}M,1,30,1,m,{}\nM,1,12,1,m,{}\n", stack("one"), stack("two"));
    let report = report(file.as_bytes());
    let found = holders(&report);
    assert_eq!(found.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [30, 12]);
    for (path, _) in &found {
        assert!(
            path.len() < 1100 && path.starts_with("frame199.frame198.") && path.ends_with(".frame000 a.py:1")
        );
        assert!(path.contains(" more "), "{path}");
    }
    assert_ne!(found[0].0, found[1].0);
    // The paths of two runs are compared.
    let other = format!("{header}M,1,35,1,m,{}\nM,1,12,1,m,{}\n", stack("one"), stack("two"));
    let diff = ReportDiff::between(&report, &self::report(other.as_bytes()));
    assert_eq!((diff.places.len(), diff.peak_bytes.growth()), (1, 5));
    assert_eq!(diff.places[0].of(|row| row.peak_bytes).growth(), 5);
    // An exported profile has the same owners.
    let mut profile = Vec::new();
    export(&run(file.as_bytes()), ExportFormat::Pprof, &mut profile).unwrap();
    assert_eq!(holders(&self::report(&profile)), found);
}

#[test]
fn an_exported_profile_reads_back_with_the_same_holders() {
    let text = "a 0 100 net.fc1.matmul\na 1 28 net.fc1.matmul\na 2 7 net.fc1\na 3 9 net.relu:backward\na 4 5 step:optimizer\n";
    let original = Trace::parse(text.as_bytes(), &TraceLimits::default()).unwrap().to_recording().unwrap();
    let mut profile = Vec::new();
    export(&original, ExportFormat::Pprof, &mut profile).unwrap();
    let (before, after) = (Report::from_recording(&original), report(&profile));
    assert_eq!(holders(&before), holders(&after));
    assert_eq!(before.scopes, after.scopes);
    assert_eq!(before.phases, after.phases);
    let blocks = |report: &Report| report.live.iter().map(|row| (row.path(), row.blocks)).collect::<Vec<_>>();
    assert_eq!(blocks(&before), blocks(&after));
    assert!(ReportDiff::between(&before, &after).is_empty());
}

#[test]
fn profiles_of_jax_survive_an_export() {
    let mut profile = Vec::new();
    export(&run(JAX_AFTER), ExportFormat::Pprof, &mut profile).unwrap();
    assert_eq!(holders(&report(&profile)), holders(&report(JAX_AFTER)));
}

#[test]
fn labels_of_snapshots_name_the_caller() {
    let frame = |name: &str, file: &str, line: u64| {
        format!(r#"{{"name":"{name}","filename":"{file}","line":{line}}}"#)
    };
    let internal = [frame("torch::unwind::unwind()", "??", 0), frame("c10::cuda::malloc(int)", "", 0)];
    let backward = frame("torch::autograd::generated::AddmmBackward0::apply(std::vector)", "??", 0);
    let op = frame("at::_ops::mm::call(at::Tensor const&)", "??", 0);
    let object = frame("<built-in method sum of Tensor object at 0x7f12ab>", "none", 0);
    let python = frame("forward", "/site/linear.py", 7);
    let cases = [
        (vec![op.clone(), python.clone(), backward.clone()], "", "forward linear.py:7"),
        (vec![op.clone(), backward], "", "AddmmBackward0"),
        (vec![op], "", "aten::mm"),
        (vec![object], "", "<built-in method sum of Tensor>"),
        (vec![], "", "torch::unwind::unwind()"),
        (vec![python], "encoder", "forward linear.py:7 [encoder]"),
    ];
    for (frames, metadata, label) in cases {
        let frames = [internal.to_vec(), frames].concat().join(",");
        let snapshot = format!(
            r#"{{"device_traces":[[{{"action":"segment_map","addr":0,"size":2097152,"frames":[]}},
            {{"action":"alloc","addr":16,"size":9,"frames":[{frames}],"user_metadata":"{metadata}"}},
            {{"action":"annotate","addr":16,"size":0,"frames":[],"user_metadata":"later"}}]]}}"#
        );
        assert_eq!(report(snapshot.as_bytes()).places[0].path(), label);
    }
}

#[test]
fn blocks_of_a_list_of_segments_have_their_stacks() {
    let frame = r#"[{"name":"load","filename":"/a/train.py","line":3}]"#;
    // The block of an early PyTorch has its stack in a history.
    let list = format!(
        r#"[{{"device":0,"address":64,"segment_pool_id":[0,0],"blocks":[
        {{"size":512,"requested_size":500,"state":"active_allocated","frames":{frame}}},
        {{"size":512,"requested_size":400,"state":"active_allocated","history":[{{"addr":576,"frames":{frame}}}]}},
        {{"size":512,"requested_size":0,"state":"inactive","frames":[]}},
        {{"size":512,"requested_size":30,"state":"active_pending_free","frames":[]}}]}}]"#
    );
    // A snapshot without events has the same blocks.
    let snapshot = format!(r#"{{"device_traces":[[],[]],"segments":{list}}}"#);
    for file in [&list, &snapshot] {
        let found = holders(&report(file.as_bytes()));
        let earlier = ("(allocated before the log)".to_owned(), 512);
        assert_eq!(found, [("load train.py:3".to_owned(), 1024), earlier]);
    }
    let unused = snapshot.replace("active_allocated", "inactive").replace("active_pending_free", "inactive");
    // Its segments are idle.
    let idle = report(unused.as_bytes());
    assert_eq!(holders(&idle), []);
}

#[test]
fn bytes_from_before_a_profile_count() {
    let event = |ts: u64, total: u64, bytes: i64, address: u64| {
        format!(
            r#"{{"name":"[memory]","tid":1,"ts":{ts},"args":{{"Total Allocated":{total},"Bytes":{bytes},"Device Id":0,
            "Device Type":1,"Addr":{address}}}}}"#
        )
    };
    // 1,000 bytes were live; 300 of them are freed, 700 stay.
    let events = [event(1, 1064, 64, 16), event(2, 764, -300, 32), event(3, 964, 200, 48)].join(",");
    let file = format!(r#"{{"schemaVersion":1,"traceEvents":[{events}]}}"#);
    assert_eq!(peak(file.as_bytes()), 1064);
    assert_eq!(report(file.as_bytes()).live_bytes(), 964);
}

#[test]
fn files_that_lack_what_a_report_needs_say_so() {
    let cases: &[(&[u8], &str)] = &[
        (
            b"{\"schemaVersion\":1,\"traceEvents\":[{\"name\":\"aten::mm\"}]}",
            "byte 0: no events of memory: call torch.profiler.profile(profile_memory=True)",
        ),
        (
            b"\x0a\x04\x08\x01\x10\x02\x32\x002\x03cpu2\x0bnanoseconds",
            "byte 0: a profile of cpu (nanoseconds), without bytes: save a heap profile, such as that of \
             jax.profiler.save_device_memory_profile or Go's /debug/pprof/heap",
        ),
        (
            b"\x0a\x04\x08\x01\x10\x02\x12\xff",
            "byte 7: not a pprof profile: a number is cut off, or has more than 64 bits",
        ),
        (
            b"\x0a\x04\x08\x01\x10\x02\x12\x09\x0a",
            "byte 8: not a pprof profile: a field is longer than the file",
        ),
        (
            b"v 10400 3\nx 10 ./heap\n",
            "line 2: raw data of heaptrack: pipe the file through heaptrack_interpret",
        ),
        (b"v 10400 9\n", "line 1: version 9 of heaptrack's format; versions 1 to 3 are supported"),
        (b"v 10400 3\na 10 0\n+ 4\n", "line 3: kind of block 4 does not exist"),
        (
            b"allocator,num_allocations,size,tid,thread_name,stack_trace\nMALLOC,1,-5,1,m,\n",
            "line 2: \"-5\" is not an integer below 2^64",
        ),
    ];
    for &(file, message) in cases {
        assert_eq!(refusal(file), message);
    }
}
