//! The rules of the queue, one thread at a time: the waiters are numbers, and the memory is a number of bytes.

use proptest::prelude::*;

use super::*;

const fn like(bytes: u64) -> WaitKey {
    WaitKey { bytes, class: Some(0) }
}

const fn unlike(bytes: u64) -> WaitKey {
    WaitKey { bytes, class: None }
}

/// Waiters that bear the numbers 0, 1, … in their order.
fn queue(wants: &[WaitKey]) -> Queue<usize> {
    let mut queue = Queue::default();
    for (number, &want) in wants.iter().enumerate() {
        assert_eq!(queue.enter(want, queue.epoch(), number as u64, number), (number as u64 + 1, None));
    }
    queue
}

/// Lets whoever has the turn fail, until nobody has it; who they were.
fn fail_all(queue: &mut Queue<usize>, wants: &[WaitKey], first: Option<usize>) -> Vec<usize> {
    let mut tried = Vec::new();
    let mut turn = first;
    while let Some(number) = turn {
        tried.push(number);
        turn = queue.failed(number as u64 + 1, wants[number], queue.epoch());
    }
    tried
}

#[test]
fn the_oldest_whom_a_free_may_serve_is_woken() {
    let mut queue = queue(&[like(300), like(200), like(100)]);
    assert_eq!(queue.freed(50), None);
    assert_eq!(queue.freed(200), Some(1));
    assert!(queue.has_turn(2));
    assert_eq!(queue.turns(), 1);
}

#[test]
fn who_is_served_hands_the_turn_to_the_next() {
    let mut queue = queue(&[like(100), like(300), like(100)]);
    assert_eq!(queue.freed(250), Some(0));
    assert_eq!(queue.leave(1), Some(2));
    assert_eq!(queue.leave(3), None);
    assert_eq!(queue.freed(300), Some(1));
}

#[test]
fn requests_wait_until_one_has_a_turn() {
    let mut queue = queue(&[like(100), like(200)]);
    assert!(queue.all_wait(&[0, 1]) && !queue.all_wait(&[0, 1, 2]));
    assert_eq!(queue.oldest(), Some((1, &0)));
    assert_eq!(queue.freed(100), Some(0));
    assert!(!queue.all_wait(&[0, 1]), "one is about to try");
    assert_eq!(queue.failed(1, like(100), queue.epoch()), None);
    assert!(queue.all_wait(&[0, 1]));
    queue.give_up(1);
    assert!(!queue.all_wait(&[0, 1]) && queue.all_wait(&[1]));
    assert_eq!(queue.oldest(), Some((2, &1)));
}

#[test]
fn a_failure_rules_out_only_equal_or_larger_requests() {
    let other = WaitKey { bytes: 500, class: Some(1) };
    let wants = [like(200), like(300), other, like(100), like(200), unlike(900)];
    let mut queue = queue(&wants);
    let first = queue.freed(u64::MAX);
    assert_eq!(fail_all(&mut queue, &wants, first), [0, 2, 3, 5]);
}

#[test]
fn a_thousand_of_one_size_cost_one_failed_attempt() {
    let wants = [like(64); 1000];
    let mut queue = queue(&wants);
    for _ in 0..10 {
        let first = queue.freed(u64::MAX);
        assert_eq!(fail_all(&mut queue, &wants, first), [0]);
    }
    assert_eq!(queue.turns(), 10);
}

#[test]
fn a_free_during_an_attempt_is_tried_after_it() {
    let wants = [like(100)];
    let mut queue = queue(&wants);
    assert_eq!(queue.freed(100), Some(0));
    let tried = queue.epoch();
    assert_eq!(queue.freed(100), None, "it is awake already");
    assert_eq!(queue.failed(1, wants[0], tried), Some(0));
    assert_eq!(queue.failed(1, wants[0], queue.epoch()), None);
}

#[test]
fn a_free_before_a_request_was_queued_is_tried() {
    let mut queue = Queue::default();
    assert_eq!(queue.freed(100), None);
    assert_eq!(queue.enter(like(100), 0, 0, 0), (1, Some(0)));
}

/// Gives `count` turns, each of them in vain, and during each of them a free that may serve anyone.
fn fail_among_frees(queue: &mut Queue<usize>, wants: &[WaitKey], count: usize) -> Vec<usize> {
    let mut turn = queue.freed(1);
    let mut tried = Vec::new();
    for _ in 0..count {
        let number = turn.unwrap();
        tried.push(number);
        let began = queue.epoch();
        assert_eq!(queue.freed(1), None);
        turn = queue.failed(number as u64 + 1, wants[number], began);
    }
    tried
}

#[test]
fn who_always_fails_cannot_keep_the_turn() {
    let wants = [unlike(1); 3];
    let tried = fail_among_frees(&mut queue(&wants), &wants, 14);
    assert_eq!(tried, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]);
}

#[test]
fn a_newcomer_is_not_preferred_to_those_who_have_failed() {
    let wants = [unlike(1); 3];
    let mut queue = queue(&wants[..2]);
    fail_among_frees(&mut queue, &wants, 9);
    queue.enter(wants[2], 0, 2, 2);
    let mut tried = Vec::new();
    for _ in 0..2 {
        let number = (queue.turn.unwrap() - 1) as usize;
        tried.push(number);
        queue.leave(number as u64 + 1);
    }
    assert_eq!(tried, [0, 1]);
}

#[test]
fn a_new_free_is_for_the_oldest_whoever_tried_last() {
    let wants = [unlike(200), unlike(100), unlike(200)];
    let mut queue = queue(&wants);
    assert_eq!(queue.freed(150), Some(1));
    assert_eq!(queue.failed(2, wants[1], queue.epoch()), None);
    assert_eq!(queue.freed(200), Some(0), "not the third, who comes after the one that tried last");
}

#[test]
fn who_leaves_without_the_turn_takes_it_from_nobody() {
    let mut queue = queue(&[like(100), like(100), like(100)]);
    assert_eq!(queue.freed(100), Some(0));
    assert_eq!(queue.leave(2), None);
    assert!(queue.has_turn(1));
    assert_eq!(queue.leave(1), Some(2));
}

#[derive(Clone, Debug)]
enum Step {
    /// A request of so many bytes, of a class, or of none.
    Ask(u64, Option<u64>),
    /// So many bytes come back.
    Give(u64),
    /// The same, but nobody says how many.
    GiveSilently(u64),
    /// Whoever has the turn tries.
    Try,
    /// One of the waiters gives up.
    GiveUp(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..20u64, prop::option::of(0..2u64)).prop_map(|(bytes, class)| Step::Ask(bytes, class)),
        3 => (1..30u64).prop_map(Step::Give),
        1 => (1..30u64).prop_map(Step::GiveSilently),
        8 => Just(Step::Try),
        1 => any::<usize>().prop_map(Step::GiveUp),
    ];
    prop::collection::vec(step, 1..200)
}

/// A pool of `free` bytes in one piece: a request fits if they suffice.
#[derive(Debug, Default)]
struct Model {
    queue: Queue<usize>,
    free: u64,
    /// By ticket, from 1: what is wanted, and whether it still waits.
    wants: Vec<(WaitKey, bool)>,
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
        (0..self.wants.len()).filter(|&number| self.wants[number].1)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Ask(bytes, class) => {
                if bytes <= self.free {
                    self.free -= bytes;
                    return;
                }
                let want = WaitKey { bytes, class };
                let number = self.wants.len();
                self.wants.push((want, true));
                let (ticket, bell) = self.queue.enter(want, self.queue.epoch(), number as u64, number);
                assert_eq!(ticket, number as u64 + 1);
                self.ring(bell);
            }
            Step::Give(bytes) => {
                self.free += bytes;
                let bell = self.queue.freed(self.free);
                self.ring(bell);
            }
            Step::GiveSilently(bytes) => {
                self.free += bytes;
                let bell = self.queue.freed(u64::MAX);
                self.ring(bell);
            }
            Step::Try => {
                let Some(number) = self.turn.take() else { return };
                let (want, ticket) = (self.wants[number].0, number as u64 + 1);
                assert!(self.queue.has_turn(ticket));
                let bell = if want.bytes <= self.free {
                    self.free -= want.bytes;
                    self.wants[number].1 = false;
                    self.queue.leave(ticket)
                } else {
                    self.queue.failed(ticket, want, self.queue.epoch())
                };
                self.ring(bell);
            }
            Step::GiveUp(which) => {
                let waiting: Vec<usize> = self.waiting().collect();
                if waiting.is_empty() {
                    return;
                }
                let number = waiting[which % waiting.len()];
                self.wants[number].1 = false;
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
    /// When nobody has the turn, nobody waits whom the memory would serve: no wake-up is lost, whatever the order.
    #[test]
    fn nobody_waits_beside_memory_that_fits(steps in steps()) {
        let mut model = Model::default();
        for step in &steps {
            model.step(step);
            if model.turn.is_none() {
                let fits = model.waiting().find(|&number| model.wants[number].0.bytes <= model.free);
                prop_assert_eq!(fits, None, "{:?}", model);
            }
        }
    }

    /// Without new requests and frees in between, those who are served by a free are served in the order of their age.
    #[test]
    fn within_a_round_the_oldest_that_fits_is_served_first(
        sizes in prop::collection::vec(1..20u64, 1..40),
        frees in prop::collection::vec(1..30u64, 1..20),
    ) {
        let mut model = Model::default();
        for bytes in sizes {
            model.step(&Step::Ask(bytes, Some(0)));
        }
        for bytes in frees {
            let mut expected: Vec<usize> = model.waiting().collect();
            let mut left = model.free + bytes;
            expected.retain(|&number| {
                let fits = model.wants[number].0.bytes <= left;
                left -= if fits { model.wants[number].0.bytes } else { 0 };
                !fits
            });
            let before = model.queue.turns();
            let served = model.waiting().count() - expected.len();
            model.step(&Step::Give(bytes));
            while model.turn.is_some() {
                model.step(&Step::Try);
            }
            prop_assert_eq!(model.waiting().collect::<Vec<_>>(), expected);
            // Failures fall in size, and no two are alike.
            prop_assert!(model.queue.turns() - before <= served as u64 + 20);
        }
    }
}
