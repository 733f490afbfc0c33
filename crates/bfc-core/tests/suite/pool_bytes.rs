//! Steps from random and mutated bytes. Runs the same function as the fuzz target `pool_operations`.

use crate::common::Random;
use crate::common::interpreter::Tally;
use crate::common::op::ops_from_bytes;
use crate::common::scenario::{natures, policies, run_bytes};

fn random_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.next() as u8).collect()
}

/// A mutation of the kinds that a fuzzer makes.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len().max(1) as u64) as usize;
    match random.below(5) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at.min(bytes.len()), random.next() as u8),
        3 if !bytes.is_empty() => drop(bytes.remove(at)),
        _ => bytes.extend_from_within(at.min(bytes.len())..),
    }
}

#[test]
fn any_bytes_run_on_any_pool() {
    let mut random = Random(17);
    let mut sum = Tally::default();
    for policy in 0..policies().len() {
        for nature in 0..natures().len() {
            let mut bytes = vec![policy as u8, nature as u8];
            let count = random.below(1500) as usize;
            bytes.extend(random_bytes(&mut random, count));
            sum += run_bytes(&bytes);
            for _ in 0..3 {
                mutate(&mut random, &mut bytes);
                bytes.truncate(3000);
                sum += run_bytes(&bytes);
            }
        }
    }
    assert!(sum.met > 10_000 && sum.refused > 1000, "{sum:?}");
}

#[test]
fn bytes_that_are_few_or_alike_run_too() {
    for bytes in [&[][..], &[0], &[255, 255], &[7; 300], &[255; 300]] {
        run_bytes(bytes);
    }
}

/// The steps must include every kind.
#[test]
fn random_bytes_stand_for_steps_of_every_kind() {
    let ops = ops_from_bytes(&random_bytes(&mut Random(3), 20_000));
    let kind = |op| format!("{op:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
    let kinds: std::collections::BTreeSet<String> = ops.iter().map(kind).collect();
    assert_eq!(kinds.len(), 14, "{kinds:?}");
}
