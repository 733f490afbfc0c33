//! Writes valid start files for every fuzz target to `corpus/TARGET`. Some are parts of files in this repository, the
//! others are generated, the same each time.
//!
//!     cargo run --manifest-path fuzz/Cargo.toml --example seed_corpus
//!
//! You may add further files, such as traces and recordings.

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bfc_core::{Bytes, PackingOptions};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use highwater_nn::fuzz;
use highwater_nn::io::{Array, Arrays, Safetensors, write_npy_to, write_npz_to, write_safetensors_to};
use highwater_nn::modules::{Linear, Module};
use highwater_nn::optim::{Adam, Optimizer};
use highwater_tensor::{Rng, Runtime, Tensor};
use highwater_traces::{ReadOptions, Step, Trace, packing_of};
use highwater_tracking::{RunFacts, write_packing};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    traces()?;
    recordings()?;
    arrays()?;
    texts()?;
    Ok(())
}

/// A file of this repository.
fn repository(path: &str) -> Outcome<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read(root.join(path)).map_err(|error| format!("{path}: {error}").into())
}

/// Adds a file to the corpora of these targets.
fn seed(targets: &[&str], name: &str, contents: &[u8]) -> Outcome {
    for target in targets {
        let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "corpus", target].iter().collect();
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), contents)?;
    }
    Ok(())
}

fn gzip(contents: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(contents)?;
    Ok(encoder.finish()?)
}

fn gunzip(contents: &[u8]) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(contents).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first lines of a text.
fn beginning(text: &[u8], lines: usize) -> &[u8] {
    let end = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(lines - 1);
    end.map_or(text, |(end, _)| &text[..=end])
}

fn traces() -> Outcome {
    let trace = gunzip(&repository("data/digits.trace.gz")?)?;
    for lines in [20, 150, 800] {
        let text = beginning(&trace, lines);
        seed_trace(&format!("digits-{lines}"), text)?;
        seed(&["trace_replay"], &format!("digits-{lines}"), text)?;
        let compressed = gzip(text)?;
        seed(&["trace_any"], &format!("digits-{lines}.gz"), &compressed)?;
        // Without the magic, which the target adds.
        seed(&["trace_gzip"], &format!("digits-{lines}.gz"), &compressed[2..])?;
        let read = Trace::read(text, &ReadOptions::default())?;
        let mut packing = Vec::new();
        write_packing(
            &packing_of(&read, &Step::Whole, &PackingOptions::default(), &mut |_| true)?,
            &mut packing,
        )?;
        seed(&["packing"], &format!("digits-{lines}"), &packing)?;
    }
    for folder in ["crates/traces/tests/data", "crates/traces/tests/data/runtimes"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file()) {
                seed_trace(name, &fs::read(&path)?)?;
            }
        }
    }
    let gaps = "a,0,10,8,1,2-8@0:4\nb,2,8,4,4,\n";
    seed(&["trace_minimalloc_gaps"], "gaps", gaps.as_bytes())?;
    let snapshot = r#"{"device_traces":[[{"action":"alloc","addr":16,"size":9,"frames":[]}]],"segments":[]}"#;
    seed_trace("snapshot-json", snapshot.as_bytes())?;
    let events = r#"{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","tid":1,"ts":1,"dur":9},{"name":"[memory]","tid":1,"ts":2,
"args":{"Total Allocated":96,"Bytes":64,"Device Id":-1,"Device Type":0,"Addr":16}},{"name":"[memory]","tid":1,"ts":3,
"args":{"Total Allocated":32,"Bytes":-64,"Device Id":-1,"Device Type":0,"Addr":16}}]}"#;
    seed_trace("two-events", events.as_bytes())?;
    let step = "a 1 1000 relu\na 2 1000 relu:backward\nf 1\nf 2\n";
    let steps =
        format!("# mark: start\na 0 4096 weights\n{step}{}", step.replace('1', "3").replace('2', "4"));
    seed_trace("steps", steps.as_bytes())?;
    seed(&["trace_replay"], "steps", steps.as_bytes())
}

/// Adds a file of any format, compressed or not.
fn seed_trace(name: &str, file: &[u8]) -> Outcome {
    seed(&["trace_any"], name, file)?;
    let plain = if file.starts_with(&[0x1f, 0x8b]) { gunzip(file)? } else { file.to_vec() };
    let input = highwater_traces::fuzz::input_of_formats(&plain);
    input.map_or(Ok(()), |input| seed(&["trace_formats"], name, &input))
}

/// A file in memory.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Recordings of runs of few and many steps, one of which runs out of memory.
fn recordings() -> Outcome {
    for (steps, pool) in [(0, 1 << 20), (1, 1 << 20), (4, 1 << 20), (20, 1 << 20), (1, 2048)] {
        let file = Shared::default();
        let runtime = Runtime::builder().pool(Bytes(pool)).build()?;
        let facts = RunFacts::new("seed").with("steps", steps);
        runtime.tracker().start_recording(file.clone(), &facts)?;
        // The small pool runs out of memory, on purpose.
        let trained = train(&runtime, steps);
        let allocator = Arc::clone(runtime.cpu()?.default_allocator()?);
        runtime.tracker().finish_recording(&[allocator])?;
        assert_eq!(trained.is_ok(), pool > 2048);
        let file = file.bytes();
        seed(&["hwm", "hwm_shown", "hwm_exported", "trace_any"], &format!("steps-{steps}-of-{pool}"), &file)?;
        // Blocks of events alone: behind the magic, the version and the facts.
        if let Some(events) = first_events(&file) {
            seed(&["hwm_events", "hwm_shown", "hwm_exported"], &format!("events-{steps}-of-{pool}"), events)?;
        }
    }
    Ok(())
}

/// The contents of the first block of events in a recording.
fn first_events(file: &[u8]) -> Option<&[u8]> {
    let mut rest = file.get(10..)?;
    loop {
        let (head, behind) = rest.split_first_chunk::<9>()?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (contents, next) = behind.split_at_checked(length)?;
        if head[0] == b'E' {
            return Some(contents);
        }
        rest = next;
    }
}

/// Trains a small layer.
fn train(runtime: &Runtime, steps: u64) -> Outcome {
    let device = runtime.cpu()?;
    let rng = Rng::new(steps);
    let layer = Linear::new(&device, 3, 2, &rng)?;
    let mut adam = Adam::new(layer.parameters(), 1e-3)?;
    let x = Tensor::uniform(&device, [64, 3], -1.0, 1.0, &rng)?;
    let y = Tensor::zeros(&device, [64, 2])?;
    for step in 0..steps {
        runtime.tracker().mark(&format!("step {step}"));
        let loss = layer.forward(&x)?.mse_loss(&y)?;
        adam.step(loss.backward()?)?;
    }
    Ok(())
}

/// Adds a file for this reader of `highwater_nn`.
fn seed_file(reader: &str, name: &str, contents: &[u8]) -> Outcome {
    let input = fuzz::input_of_files(reader, contents).ok_or_else(|| format!("no reader {reader}"))?;
    seed(&["files"], &format!("{}-{name}", input[0]), &input)
}

fn arrays() -> Outcome {
    seed(&["files"], "checkpoint", b"")?;
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "corpus", "files", "checkpoint"].iter().collect();
    fuzz::valid_checkpoint()?.save(&path)?;
    let checkpoint = fs::read(&path)?;
    seed_file("Gguf::open", "blocks", &repository("crates/nn/tests/reference/blocks.gguf")?)?;
    let index =
        br#"{"metadata": {"total_size": 8}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    seed_file("ShardedSafetensors::open", "index", index)?;
    fs::remove_file(path)?;
    for reader in ["read_safetensors", "Checkpoint::load"] {
        seed_file(reader, "run", &checkpoint)?;
    }
    let mut arrays = Arrays::new();
    arrays.insert("weight".to_owned(), Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?);
    arrays.insert("count".to_owned(), Array::from_slice(&[7_i64], ())?);
    arrays.insert("mask".to_owned(), Array::from_slice(&[true, false, true], [3])?);
    arrays.insert("none".to_owned(), Array::from_slice::<f64>(&[], [0, 4])?);
    for (name, array) in &arrays {
        let mut file = Vec::new();
        write_npy_to(&mut file, array)?;
        seed_file("read_npy", name, &file)?;
    }
    let mut archive = Vec::new();
    write_npz_to(&mut archive, &arrays)?;
    seed_file("read_npz", "stored", &archive)?;
    for name in ["tensors", "training", "module"] {
        seed_file("read_state_dict", name, &repository(&format!("crates/nn/tests/reference/{name}.pt"))?)?;
    }
    let mut contents = Safetensors { arrays, ..Safetensors::default() };
    contents.metadata.insert("format".to_owned(), "pt".to_owned());
    let mut file = Vec::new();
    write_safetensors_to(&mut file, &contents)?;
    for reader in ["read_safetensors", "Checkpoint::load"] {
        seed_file(reader, "arrays", &file)?;
    }
    let idx = [&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3][..], &[1, 2, 3, 4, 5, 6]].concat();
    seed_file("read_idx", "plain", &idx)?;
    seed_file("read_idx", "compressed", &gzip(&idx)?)
}

fn texts() -> Outcome {
    let digits = gunzip(&repository("data/digits.csv.gz")?)?;
    seed_file("read_csv", "digits", beginning(&digits, 10))?;
    seed_file("read_csv", "numbers", b"# x, y\n1.5, -2e3,0\n\"3\",4,1\r\n")?;
    seed_file("read_csv", "names", b"a;b;c\nred;;cat\nblue;2;dog\n")?;
    seed_file("ImageFolder::open", "pixels", &repository("crates/nn/tests/cases/pixels.png")?)?;
    seed_file("Text::read", "words", "One word, zwei W\u{f6}rter.\n".as_bytes())?;
    let pairs = "{\"prompt\": \"2 + 2 =\", \"answer\": \" 4\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"W\u{f6}rter?\"}, \
         {\"role\": \"assistant\", \"content\": \"Ja\"}]}\n";
    seed_file("Pairs::read", "forms", pairs.as_bytes())?;
    seed(&["golden"], "step", &repository("tests/golden/training_step.txt")?)?;
    let log = "{\"t\":1.5,\"step\":0,\"loss\":2.5}\n{\"t\":2,\"step\":1,\"loss\":0.5,\"rate\":1e-3}\n";
    seed(&["training_log"], "losses", log.as_bytes())?;
    for (number, equation) in
        ["ij,jk->ik", "bhid,bhjd->bhij", "i,i", "ijk->ki", "i,j,k->", ""].iter().enumerate()
    {
        seed(&["einsum"], &number.to_string(), &[b"\x02\x03\x01\x02", equation.as_bytes()].concat())?;
    }
    for (number, profile) in [
        "t4",
        "cpu,memory=1GiB",
        "cuda,memory=24GiB,limit=90%,compute=8.9",
        "a100-80g,limit=all-1GiB,threads=3",
    ]
    .iter()
    .enumerate()
    {
        seed(&["profile"], &number.to_string(), profile.as_bytes())?;
    }
    let variables = [
        "ALLOCATOR=guard\nPOOL_LIMIT=64MiB\nRETRY_MS=0",
        "GROWTH=doubling:1MiB\nFIRST_REGION=64KiB\nREGION_MERGING=off\nGARBAGE_COLLECTION=on\nPOOL_LIMIT=75%",
        "GROWTH=proportional:32\nSPLIT=twice:5%\nCUT=large-high\nTHREAD_CACHE=64KiB:4MiB\nPOOL_LIMIT=all-1GiB",
        "ALLOCATOR_CPU=buddy\nGROWTH_DRY_0=fixed:2MiB\nALLOCATOR_DRY=auto-growth",
    ];
    for (number, text) in variables.iter().enumerate() {
        seed(&["environment"], &number.to_string(), text.as_bytes())?;
    }
    // Steps are arbitrary bytes: a few of each value suffice.
    let bytes: Vec<u8> = (0..3000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for policy in 0..30_u8 {
        seed(&["pool_operations"], &policy.to_string(), &[&[policy, policy], &bytes[..1000]].concat())?;
    }
    Ok(())
}
