//! The biased mutex under the `shuttle` checker: threads come and go in many orders, biases begin and end, and no two are
//! inside at once. Here a bias begins anew after two turns.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p bfc-core --test biased_shuttle`

#![cfg(shuttle)]

use bfc_core::sync::{Arc, BiasedMutex, ThreadNumber, thread};

/// Orders tried of each scenario.
const SCHEDULES: usize = 3000;

/// Comes `turns` times, and is seen by nobody while inside.
fn come(mutex: &BiasedMutex<(u64, bool)>, turns: usize) {
    let me = ThreadNumber::current();
    for _ in 0..turns {
        let mut inside = mutex.lock(me);
        assert!(!inside.1, "somebody else is inside");
        inside.1 = true;
        thread::yield_now();
        inside.0 += 1;
        inside.1 = false;
    }
}

fn scenario(turns: [usize; 3]) {
    let mutex = Arc::new(BiasedMutex::new((0, false)));
    let threads = turns.map(|turns| {
        let mutex = mutex.clone();
        thread::spawn(move || come(&mutex, turns))
    });
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    assert_eq!(mutex.lock(ThreadNumber::current()).0, turns.iter().sum::<usize>() as u64);
}

#[test]
fn no_two_threads_are_inside_whatever_their_order() {
    shuttle::check_random(|| scenario([5, 3, 1]), SCHEDULES);
}

#[test]
fn no_two_threads_are_inside_when_few_preemptions_fall_at_the_worst_places() {
    shuttle::check_pct(|| scenario([4, 4, 2]), SCHEDULES, 4);
}

#[test]
fn a_thread_that_looks_too_late_does_not_disturb_the_next_favoured_one() {
    shuttle::check_random(|| scenario([3, 6, 6]), SCHEDULES);
    shuttle::check_pct(|| scenario([3, 6, 6]), SCHEDULES, 3);
}
