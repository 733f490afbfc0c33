//! Environment variables, valid and damaged at every byte. Runs the same function as the fuzz target
//! `environment`.

use crate::common::environment::run_variables;

const VARIABLES: &[&str] = &[
    "ALLOCATOR=guard\nPOOL_LIMIT=64MiB\nRETRY_MS=0",
    "GROWTH=doubling:1MiB\nFIRST_REGION=64KiB\nREGION_MERGING=off\nPOOL_LIMIT=75%",
    "GROWTH=proportional:32\nSPLIT=twice:5%\nCUT=large-high\nPOOL_LIMIT=all-1GiB",
    "ENDS=collectives\nALLOCATOR_CPU=buddy\nGROWTH_DRY_0=fixed:2MiB\nALLOCATOR_DRY=auto-growth",
    "GARBAGE_COLLECTION=on\nTHREAD_CACHE=64KiB:4MiB\nGROWTH=as-requested",
    "POOL_LIMIT=18446744073709551615\nGROWTH=proportional:18446744073709551615",
    "POOL_LIMIT=18446744073709551615\nGROWTH=doubling:16777215TiB\nFIRST_REGION=16777215TiB",
    "POOL_LIMIT=10000%\nSPLIT=twice:100%\nGROWTH=fixed:18446744073709551615\nENDS=two",
    "DEVICE=cuda:4294967295\nNVRTC=/\nCUBLAS=x",
];

#[test]
fn damaged_variables_are_refused_or_make_a_pool() {
    for &text in VARIABLES {
        for at in 0..=text.len() {
            run_variables(&text.as_bytes()[..at]);
        }
        for at in 0..text.len() {
            for flip in [1, 4, 0x20, 0x80] {
                let mut changed = text.as_bytes().to_vec();
                changed[at] ^= flip;
                run_variables(&changed);
            }
        }
    }
}
