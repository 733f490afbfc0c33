//! Tests of the queue in one thread: waiters are numbers, and memory is a number of bytes.

use proptest::prelude::*;

use super::*;

const fn like(bytes: u64) -> WaitKey {
    WaitKey { bytes, class: Some(0) }
}

const fn unlike(bytes: u64) -> WaitKey {
    WaitKey { bytes, class: None }
}

/// Creates waiters with the numbers 0, 1, … in this order.
fn queue(keys: &[WaitKey]) -> Queue<usize> {
    let mut queue = Queue::default();
    for (number, &key) in keys.iter().enumerate() {
        assert_eq!(queue.enter(key, queue.epoch(), number), (number as u64 + 1, None));
    }
    queue
}

/// Fails each waiter that has the turn, until none has it. Returns these waiters.
fn fail_all(queue: &mut Queue<usize>, keys: &[WaitKey], first: Option<usize>) -> Vec<usize> {
    let mut tried = Vec::new();
    let mut turn = first;
    while let Some(number) = turn {
        tried.push(number);
        turn = queue.failed(number as u64 + 1, keys[number], queue.epoch());
    }
    tried
}

#[test]
fn a_free_wakes_the_oldest_waiter_that_it_may_serve() {
    let mut queue = queue(&[like(300), like(200), like(100)]);
    assert_eq!(queue.freed(50), None);
    assert_eq!(queue.freed(200), Some(1));
    assert!(queue.has_turn(2));
    assert_eq!(queue.turns(), 1);
}

#[test]
fn a_served_waiter_passes_the_turn_on() {
    let mut queue = queue(&[like(100), like(300), like(100)]);
    assert_eq!(queue.freed(250), Some(0));
    assert_eq!(queue.leave(1), Some(2));
    assert_eq!(queue.leave(3), None);
    assert_eq!(queue.freed(300), Some(1));
}

#[test]
fn a_failure_rules_out_comparable_larger_requests_only() {
    let other = WaitKey { bytes: 500, class: Some(1) };
    let keys = [like(200), like(300), other, like(100), like(200), unlike(900)];
    let mut queue = queue(&keys);
    let first = queue.freed(u64::MAX);
    assert_eq!(fail_all(&mut queue, &keys, first), [0, 2, 3, 5]);
}

#[test]
fn a_thousand_of_one_size_cost_one_failed_attempt() {
    let keys = [like(64); 1000];
    let mut queue = queue(&keys);
    for _ in 0..10 {
        let first = queue.freed(u64::MAX);
        assert_eq!(fail_all(&mut queue, &keys, first), [0]);
    }
    assert_eq!(queue.turns(), 10);
}

#[test]
fn a_free_during_an_attempt_is_tried_after_it() {
    let keys = [like(100)];
    let mut queue = queue(&keys);
    assert_eq!(queue.freed(100), Some(0));
    let tried = queue.epoch();
    assert_eq!(queue.freed(100), None, "it is awake already");
    assert_eq!(queue.failed(1, keys[0], tried), Some(0));
    assert_eq!(queue.failed(1, keys[0], queue.epoch()), None);
}

#[test]
fn a_free_before_a_request_was_queued_is_tried() {
    let mut queue = Queue::default();
    assert_eq!(queue.freed(100), None);
    assert_eq!(queue.enter(like(100), 0, 0), (1, Some(0)));
}

/// Fails `count` turns, each with a free during the attempt that may serve any waiter. Returns the waiters.
fn fail_among_frees(queue: &mut Queue<usize>, keys: &[WaitKey], count: usize) -> Vec<usize> {
    let mut turn = queue.freed(1);
    let mut tried = Vec::new();
    for _ in 0..count {
        let number = turn.unwrap();
        tried.push(number);
        let began = queue.epoch();
        assert_eq!(queue.freed(1), None);
        turn = queue.failed(number as u64 + 1, keys[number], began);
    }
    tried
}

#[test]
fn a_waiter_that_always_fails_cannot_keep_the_turn() {
    let keys = [unlike(1); 3];
    let tried = fail_among_frees(&mut queue(&keys), &keys, 14);
    assert_eq!(tried, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]);
}

#[test]
fn a_newcomer_does_not_precede_waiters_that_failed() {
    let keys = [unlike(1); 3];
    let mut queue = queue(&keys[..2]);
    fail_among_frees(&mut queue, &keys, 9);
    queue.enter(keys[2], 0, 2);
    let mut tried = Vec::new();
    for _ in 0..2 {
        let number = (queue.turn.unwrap() - 1) as usize;
        tried.push(number);
        queue.leave(number as u64 + 1);
    }
    assert_eq!(tried, [0, 1]);
}

#[test]
fn a_new_free_goes_to_the_oldest_waiter() {
    let keys = [unlike(200), unlike(100), unlike(200)];
    let mut queue = queue(&keys);
    assert_eq!(queue.freed(150), Some(1));
    assert_eq!(queue.failed(2, keys[1], queue.epoch()), None);
    assert_eq!(queue.freed(200), Some(0), "not the third, who comes after the one that tried last");
}

#[test]
fn leaving_without_the_turn_keeps_the_turn_of_others() {
    let mut queue = queue(&[like(100), like(100), like(100)]);
    assert_eq!(queue.freed(100), Some(0));
    assert_eq!(queue.leave(2), None);
    assert!(queue.has_turn(1));
    assert_eq!(queue.leave(1), Some(2));
}

#[derive(Clone, Debug)]
enum Step {
    /// A request of these bytes, with a class or without.
    Request(u64, Option<u64>),
    /// A free of these bytes.
    Free(u64),
    /// A free of these bytes that is announced without a size.
    FreeUnknown(u64),
    /// The waiter with the turn tries.
    Try,
    /// One of the waiters gives up.
    GiveUp(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..20u64, prop::option::of(0..2u64)).prop_map(|(bytes, class)| Step::Request(bytes, class)),
        3 => (1..30u64).prop_map(Step::Free),
        1 => (1..30u64).prop_map(Step::FreeUnknown),
        8 => Just(Step::Try),
        1 => any::<usize>().prop_map(Step::GiveUp),
    ];
    prop::collection::vec(step, 1..200)
}

/// A pool with `free` contiguous bytes.
#[derive(Debug, Default)]
struct Model {
    queue: Queue<usize>,
    free: u64,
    /// By ticket, from 1: the key of each request, and whether it still waits.
    keys: Vec<(WaitKey, bool)>,
    turn: Option<usize>,
}

impl Model {
    fn ring(&mut self, bell: Option<usize>) {
        if bell.is_some() {
            assert_eq!(self.turn, None, "two have the turn");
            self.turn = bell;
        }
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        (0..self.keys.len()).filter(|&number| self.keys[number].1)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Request(bytes, class) => {
                if bytes <= self.free {
                    self.free -= bytes;
                    return;
                }
                let key = WaitKey { bytes, class };
                let number = self.keys.len();
                self.keys.push((key, true));
                let (ticket, bell) = self.queue.enter(key, self.queue.epoch(), number);
                assert_eq!(ticket, number as u64 + 1);
                self.ring(bell);
            }
            Step::Free(bytes) => {
                self.free += bytes;
                let bell = self.queue.freed(self.free);
                self.ring(bell);
            }
            Step::FreeUnknown(bytes) => {
                self.free += bytes;
                let bell = self.queue.freed(u64::MAX);
                self.ring(bell);
            }
            Step::Try => {
                let Some(number) = self.turn.take() else { return };
                let (key, ticket) = (self.keys[number].0, number as u64 + 1);
                assert!(self.queue.has_turn(ticket));
                let bell = if key.bytes <= self.free {
                    self.free -= key.bytes;
                    self.keys[number].1 = false;
                    self.queue.leave(ticket)
                } else {
                    self.queue.failed(ticket, key, self.queue.epoch())
                };
                self.ring(bell);
            }
            Step::GiveUp(which) => {
                let waiting: Vec<usize> = self.waiting().collect();
                if waiting.is_empty() {
                    return;
                }
                let number = waiting[which % waiting.len()];
                self.keys[number].1 = false;
                if self.turn == Some(number) {
                    self.turn = None;
                }
                let bell = self.queue.leave(number as u64 + 1);
                self.ring(bell);
            }
        }
    }
}

proptest! {
    /// Without a turn, the free memory serves no waiter: no wake-up is lost in any order.
    #[test]
    fn no_request_waits_while_its_memory_is_free(steps in steps()) {
        let mut model = Model::default();
        for step in &steps {
            model.step(step);
            if model.turn.is_none() {
                let fits = model.waiting().find(|&number| model.keys[number].0.bytes <= model.free);
                prop_assert_eq!(fits, None, "{:?}", model);
            }
        }
    }

    /// Without new requests and frees in between, a free serves waiters in order of age.
    #[test]
    fn within_a_round_the_oldest_that_fits_is_served_first(
        sizes in prop::collection::vec(1..20u64, 1..40),
        frees in prop::collection::vec(1..30u64, 1..20),
    ) {
        let mut model = Model::default();
        for bytes in sizes {
            model.step(&Step::Request(bytes, Some(0)));
        }
        for bytes in frees {
            let mut expected: Vec<usize> = model.waiting().collect();
            let mut left = model.free + bytes;
            expected.retain(|&number| {
                let fits = model.keys[number].0.bytes <= left;
                left -= if fits { model.keys[number].0.bytes } else { 0 };
                !fits
            });
            let before = model.queue.turns();
            let served = model.waiting().count() - expected.len();
            model.step(&Step::Free(bytes));
            while model.turn.is_some() {
                model.step(&Step::Try);
            }
            prop_assert_eq!(model.waiting().collect::<Vec<_>>(), expected);
            // Failed sizes are distinct and descending.
            prop_assert!(model.queue.turns() - before <= served as u64 + 20);
        }
    }
}
