//! Policies beside the plainest policy with the same rules. Buddy and auto-growth, which have cases of Paddle too, are in
//! files of their own.

use bfc_core::FirstFit;
use proptest::prelude::*;

use crate::shadow::plain::Rules;
use crate::shadow::{Shadow, refuses_the_impossible, steps};

#[test]
fn requests_at_the_edge_of_the_address_space_are_refused_or_met() {
    refuses_the_impossible(FirstFit::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn first_fit_takes_the_lowest_address(steps in steps(96 << 10)) {
        let rules = Rules { key: |candidate| candidate.piece.address, ..Rules::PLAIN };
        Shadow::new(FirstFit::default(), rules, |_, _| Vec::new()).run(&steps);
    }
}
