//! The categories that are inferred for PyTorch snapshots, compared with labels from the same runs.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use bfc_core::Category;
use highwater_traces::{ReadOptions, Snapshot};
use highwater_tracking::EventKind;

/// The letters of labels, in the order of rows.
const LETTERS: &str = "PGOAIT";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/labeled")
}

/// Returns the letter of a category. Labels do not distinguish kinds of temporary blocks.
const fn letter(category: Category) -> char {
    match category {
        Category::Parameter => 'P',
        Category::Gradient => 'G',
        Category::OptimizerState => 'O',
        Category::Activation => 'A',
        Category::Input => 'I',
        _ => 'T',
    }
}

/// Reads a recorded run, and the label of each block.
fn read(model: &str, stacks: &str) -> (Snapshot, Vec<char>) {
    let file = fs::read(folder().join(format!("{model}-{stacks}.pickle.gz"))).unwrap();
    let snapshot = Snapshot::read(&file[..], &ReadOptions::default()).unwrap();
    let labels = fs::read_to_string(folder().join(format!("{model}.labels"))).unwrap();
    let (events, earlier) = labels.trim_end_matches('\n').split_once('\n').unwrap_or((labels.trim(), ""));
    let blocks = snapshot.recording().blocks();
    // Blocks that are older than the first event come first. Those that are freed later have no label.
    let older = blocks.len() - events.len();
    let mut letters = vec!['?'; older];
    letters.extend(events.chars());
    let mut live: Vec<usize> = (0..older).collect();
    for event in snapshot.recording().events() {
        if let EventKind::Free(block) = event.kind {
            live.retain(|&number| number != block as usize);
        }
    }
    live.sort_by_key(|&number| blocks[number].address);
    assert_eq!(live.len(), earlier.len(), "{model}");
    for (&number, letter) in live.iter().zip(earlier.chars()) {
        letters[number] = letter;
    }
    (snapshot, letters)
}

/// Bytes at the peak by label and inferred category.
#[derive(Default)]
struct Confusion([[u64; 6]; 7]);

impl Confusion {
    fn at_peak(snapshot: &Snapshot, labels: &[char]) -> Self {
        let recording = snapshot.recording();
        let (mut live, mut peak, mut at) = (0, 0, 0);
        for (number, event) in recording.events().iter().enumerate() {
            match event.kind {
                EventKind::Alloc(block) => live += recording.block(block).requested,
                EventKind::Free(block) => live -= recording.block(block).requested,
                _ => {}
            }
            if live > peak {
                (peak, at) = (live, number);
            }
        }
        let mut confusion = Self::default();
        let mut add = |block: u32, sign: i64| {
            let life = recording.block(block);
            let row = LETTERS.find(labels[block as usize]).unwrap_or(6);
            let column = LETTERS.find(letter(life.category)).unwrap();
            let cell = &mut confusion.0[row][column];
            *cell = cell.checked_add_signed(sign * life.requested as i64).unwrap();
        };
        for event in &recording.events()[..=at] {
            match event.kind {
                EventKind::Alloc(block) => add(block, 1),
                EventKind::Free(block) => add(block, -1),
                _ => {}
            }
        }
        confusion
    }

    /// Returns the share of bytes in the right category.
    fn share(&self) -> f64 {
        let right: u64 = (0..6).map(|index| self.0[index][index]).sum();
        let all: u64 = self.0[..6].iter().flatten().sum();
        right as f64 / all as f64
    }
}

impl std::fmt::Display for Confusion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = String::from("label ");
        for letter in LETTERS.chars() {
            write!(table, "{letter:>12}")?;
        }
        for (row, letter) in self.0.iter().zip(LETTERS.chars().chain(['?'])) {
            write!(table, "\n{letter:>5} ")?;
            for bytes in row {
                write!(table, "{bytes:>12}")?;
            }
        }
        f.write_str(&table)
    }
}

#[test]
fn the_categories_of_labeled_runs_are_inferred() {
    for model in ["cnn", "gpt2", "lstm", "encoder"] {
        for stacks in ["all", "python"] {
            let (snapshot, labels) = read(model, stacks);
            let confusion = Confusion::at_peak(&snapshot, &labels);
            println!("{model}, stacks={stacks}: {:.4}\n{confusion}", confusion.share());
            assert!(
                confusion.share() >= 0.95,
                "{model}, stacks={stacks}: {:.4}\n{confusion}",
                confusion.share()
            );
        }
    }
}
