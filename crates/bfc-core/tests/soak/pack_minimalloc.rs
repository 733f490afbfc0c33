//! Runs the packer on the challenge sets of MiniMalloc, whose blocks all fit into 1,048,576, and measures
//! how much more quick placement needs.

use std::time::Instant;

use bfc_core::{Lifetime, Packing, PackingOptions};

/// The capacity that holds all blocks of a set.
const CAPACITY: u64 = 1 << 20;

/// A set: its letter, its blocks, the most that is live at a time, and its lines.
type Set = (char, usize, u64, &'static str);

macro_rules! sets {
    ($($letter:literal, $blocks:literal, $peak:literal;)*) => {
        &[$((
            $letter,
            $blocks,
            $peak,
            include_str!(concat!("../data/minimalloc/", $letter, ".1048576.csv")),
        )),*]
    };
}

const SETS: &[Set] = sets! {
    'A', 154, 1_048_576;
    'B', 170, 1_048_576;
    'C', 203, 1_039_360;
    'D', 213, 986_112;
    'E', 215, 1_048_576;
    'F', 296, 1_048_576;
    'G', 308, 1_048_576;
    'H', 316, 1_048_576;
    'I', 374, 1_048_576;
    'J', 409, 989_184;
    'K', 454, 1_048_576;
};

fn options() -> PackingOptions {
    PackingOptions::default().with_granule(1)
}

fn lifetimes(csv: &str) -> Vec<Lifetime> {
    let block = |line: &str| {
        let mut fields = line.split(',').skip(1).map_while(|field| field.parse::<u32>().ok());
        let (start, end) = (fields.next()?, fields.next()?);
        Some(Lifetime { start, end, bytes: u64::from(fields.next()?) })
    };
    let mut lifetimes: Vec<Lifetime> = csv.lines().skip(1).filter_map(block).collect();
    lifetimes.sort_by_key(|lifetime| lifetime.start);
    lifetimes
}

/// Returns the checked packing of a set and the number of steps.
fn solved(&(letter, blocks, peak, csv): &Set, options: &PackingOptions) -> (Packing, u64) {
    let lifetimes = lifetimes(csv);
    let mut steps = 0;
    let packing = Packing::solve_constrained(&lifetimes, Vec::new(), |_| true, options, &mut |progress| {
        steps = progress.steps;
        true
    });
    let packing = packing.unwrap();
    assert_eq!((lifetimes.len(), packing.lower_bound()), (blocks, peak), "set {letter}");
    assert_eq!(
        Packing::from_blocks(1, packing.blocks().to_vec(), Vec::new()).as_ref(),
        Ok(&packing),
        "set {letter}: no overlap"
    );
    (packing, steps)
}

#[test]
fn every_challenge_set_fits_into_its_capacity() {
    for set in SETS {
        let (packing, steps) = solved(set, &options().with_target(CAPACITY));
        assert!(packing.capacity() <= CAPACITY, "set {}: {}", set.0, packing.capacity());
        // A fraction of the default effort.
        assert!(steps < 40_000_000, "set {}: {steps} steps", set.0);
    }
}

#[test]
fn the_sets_are_hard_without_the_search() {
    for set in SETS {
        let (quick, _) = solved(set, &options().with_effort(0));
        assert!(quick.capacity() > CAPACITY * 105 / 100, "set {}: {}", set.0, quick.capacity());
    }
}

/// The table of docs/benchmarks.md.
#[test]
#[ignore = "prints a table, and takes the effort of two sets whose least capacity is not known: for a release build"]
fn table_of_all_sets() {
    println!(
        "| set | blocks | live at the peak | time to 1,048,576 | by default | steps | time | placed once |"
    );
    for set in SETS {
        let (quick, _) = solved(set, &options().with_effort(0));
        let start = Instant::now();
        let (within, _) = solved(set, &options().with_target(CAPACITY));
        let to_target = start.elapsed().as_secs_f64();
        assert!(within.capacity() <= CAPACITY);
        let start = Instant::now();
        let (packing, steps) = solved(set, &options());
        println!(
            "| {} | {} | {} | {to_target:.2} s | {} | {steps} | {:.2} s | {} |",
            set.0,
            set.1,
            set.2,
            packing.capacity(),
            start.elapsed().as_secs_f64(),
            quick.capacity()
        );
    }
}
