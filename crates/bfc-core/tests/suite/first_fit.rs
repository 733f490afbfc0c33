//! The first-fit policy beside the plainest policy.

use bfc_core::FirstFit;
use proptest::prelude::*;

use crate::shadow::plain::Rules;
use crate::shadow::{Shadow, refuses_the_impossible, steps};

#[test]
fn needs_at_the_edge_of_the_address_space_are_refused_or_met() {
    refuses_the_impossible(FirstFit::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_sequences_take_the_lowest_addresses(steps in steps(96 << 10)) {
        let (step, max_chunk) = (256, u64::MAX);
        let rules = Rules { step, overhead: 0, kept_rest: 0, max_chunk, upper_end: false, lowest: true };
        Shadow::new(FirstFit::default(), rules, |_, _| Vec::new()).run(&steps);
    }
}
