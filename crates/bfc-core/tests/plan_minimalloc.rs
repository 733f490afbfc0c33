//! The planner against a set of blocks on which quick placement wastes more than a tenth.

use bfc_core::{Lifetime, Plan, PlanOptions};

/// What all blocks of the set fit into.
const CAPACITY: u64 = 1 << 20;

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

#[test]
fn the_challenge_set_b_fits_into_its_lower_bound() {
    let lifetimes = lifetimes(include_str!("data/minimalloc/B.1048576.csv"));
    assert_eq!(lifetimes.len(), 170);
    let plan = Plan::solve(&lifetimes, &PlanOptions::default().with_granule(1)).unwrap();
    assert_eq!((plan.capacity(), plan.lower_bound()), (CAPACITY, CAPACITY));
    assert_eq!(Plan::from_blocks(1, plan.blocks().to_vec()), Ok(plan), "no two blocks overlap");

    // Without the search, it is far from it: the set is hard.
    let quick = Plan::solve(&lifetimes, &PlanOptions::default().with_granule(1).with_effort(0)).unwrap();
    assert!(quick.capacity() > CAPACITY * 11 / 10, "{}", quick.capacity());
}
