//! Runs a test in several processes, one per rank. All of them know the id of one communicator.

#![allow(dead_code, reason = "each suite uses a part")]

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bfc_cuda::UniqueId;

/// The time limit of operations that end.
pub(crate) const LONG: Duration = Duration::from_secs(60);

const RANK: &str = "TEST_NCCL_RANK";
const SIZE: &str = "TEST_NCCL_SIZE";
const ID: &str = "TEST_NCCL_ID";

/// The place of this process among the ranks.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) id: UniqueId,
}

/// The place of this process, if a test started it as a rank.
pub(crate) fn place() -> Option<Place> {
    let number = |name| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let bytes: Vec<u8> = std::env::var(ID)
        .ok()?
        .as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect();
    let id = UniqueId::from_bytes(bytes.try_into().unwrap());
    Some(Place { rank: number(RANK)?, size: number(SIZE)?, id })
}

/// The last bytes of an id in hexadecimal digits: all of it, or its random part in the emulator.
pub(crate) fn digits(id: &UniqueId, bytes: usize) -> String {
    id.to_bytes()[UniqueId::BYTES - bytes..].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a rank that runs the test with this full name.
pub(crate) fn start(test: &str, place: &Place) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(RANK, place.rank.to_string())
        .env(SIZE, place.size.to_string())
        .env(ID, digits(&place.id, UniqueId::BYTES))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs all ranks of the test with this full name, which must pass on all of them.
pub(crate) fn run_all(test: &str, id: &UniqueId, size: usize) {
    let children: Vec<Child> =
        (0..size).map(|rank| start(test, &Place { rank, size, id: id.clone() })).collect();
    let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    // One rank's failure is the cause of the others'.
    let failed: Vec<String> = outputs.iter().filter(|output| !has_passed(output)).map(text).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

pub(crate) fn text(output: &Output) -> String {
    (String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr)).into_owned()
}

pub(crate) fn has_passed(output: &Output) -> bool {
    output.status.success() && text(output).contains("1 passed")
}
