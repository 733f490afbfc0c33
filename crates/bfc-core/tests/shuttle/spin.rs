//! The spin mutex under the `shuttle` checker: no two threads hold it at once, in any order.

use bfc_core::sync::{Arc, SpinMutex, thread};

/// Orders tried for each scenario.
const SCHEDULES: usize = 2000;

/// Three threads that each lock the mutex this many times.
fn scenario(turns: [u64; 3]) {
    let mutex = Arc::new(SpinMutex::new((0, false)));
    let threads = turns.map(|turns| {
        let mutex = Arc::clone(&mutex);
        thread::spawn(move || {
            for _ in 0..turns {
                let mut held = mutex.lock();
                assert!(!held.1, "another thread holds the lock");
                held.1 = true;
                thread::yield_now();
                held.0 += 1;
                held.1 = false;
            }
        })
    });
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    assert_eq!(mutex.lock().0, turns.iter().sum::<u64>());
}

#[test]
fn threads_exclude_each_other_in_random_order() {
    shuttle::check_random(|| scenario([5, 3, 1]), SCHEDULES);
}

#[test]
fn threads_exclude_each_other_with_few_preemptions() {
    shuttle::check_pct(|| scenario([4, 4, 2]), SCHEDULES, 4);
}
