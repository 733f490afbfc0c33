use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::allocator::Request;
use crate::allocator::oom::Verdict;

fn refused(waited: u64) -> AllocError {
    let waited = Duration::from_millis(waited);
    let report = OomReport { waited, ..OomReport::new("pool", &Request::new(100), Verdict::Exhausted) };
    AllocError::OutOfMemory(Box::new(report))
}

/// The observed retries and milliseconds waited.
fn told(last_resort: &LastResort) -> Arc<Mutex<Vec<(u32, u128)>>> {
    let told = Arc::<Mutex<Vec<(u32, u128)>>>::default();
    let list = Arc::clone(&told);
    last_resort.on_failure(move |report| {
        list.lock().unwrap().push((report.retries, report.waited.as_millis()));
    });
    told
}

#[test]
fn a_request_is_retried_after_each_free_and_reported_once() {
    let last_resort = LastResort::new();
    let told = told(&last_resort);
    let left = Mutex::new(2);
    last_resort.before_giving_up(move |_| {
        let left = &mut *left.lock().unwrap();
        *left -= 1;
        *left >= 0
    });
    let mut attempts = 0;
    let error = last_resort.allocate(|| {
        attempts += 1;
        Err(refused(10))
    });
    assert_eq!((attempts, error.unwrap_err().out_of_memory().unwrap().retries), (3, 2));
    assert_eq!(*told.lock().unwrap(), [(2, 30)], "the waits of all attempts together");
    assert_eq!((last_resort.failures(), last_resort.rescued()), (1, 0));
}

#[test]
fn a_false_claim_of_freed_memory_does_not_loop_forever() {
    let last_resort = LastResort::new().with_retries(3);
    last_resort.before_giving_up(|_| true);
    let mut attempts = 0;
    let refuse = || {
        attempts += 1;
        Err(refused(0))
    };
    assert_eq!(last_resort.allocate(refuse).unwrap_err().out_of_memory().unwrap().retries, 3);
    assert_eq!(attempts, 4);
}

#[test]
fn the_newest_callback_is_asked_first() {
    let last_resort = LastResort::new().with_retries(1);
    let asked = Arc::<Mutex<Vec<&str>>>::default();
    for (name, frees) in [("first", true), ("second", true), ("third", false)] {
        let asked = Arc::clone(&asked);
        last_resort.before_giving_up(move |_| {
            asked.lock().unwrap().push(name);
            frees
        });
    }
    assert!(last_resort.allocate(|| Err(refused(0))).is_err());
    assert_eq!(*asked.lock().unwrap(), ["third", "second"]);
}

#[test]
fn requests_within_a_callback_fail_immediately() {
    let last_resort = Arc::new(LastResort::new());
    let told = told(&last_resort);
    let inner = Arc::downgrade(&last_resort);
    last_resort.before_giving_up(move |_| {
        let inner = inner.upgrade().unwrap();
        assert!(LastResort::is_busy());
        let within = inner.allocate(|| Err(refused(0)));
        within.unwrap_err().out_of_memory().unwrap().retries > 0
    });
    assert!(last_resort.allocate(|| Err(refused(0))).is_err());
    assert!(!LastResort::is_busy());
    assert_eq!(told.lock().unwrap().len(), 1);
}

#[test]
fn a_callback_that_panics_leaves_the_thread_as_it_was() {
    let last_resort = LastResort::new();
    last_resort.before_giving_up(|_| panic!("on purpose"));
    let attempt = std::panic::AssertUnwindSafe(|| last_resort.allocate(|| Err(refused(0))));
    assert!(std::panic::catch_unwind(attempt).is_err());
    assert!(!LastResort::is_busy());
}

#[test]
fn other_errors_are_nobodys_business() {
    let last_resort = LastResort::new();
    let told = told(&last_resort);
    last_resort.before_giving_up(|_| true);
    let other = AllocError::BadAlignment { allocator: "pool".to_owned(), alignment: 3 };
    assert_eq!(last_resort.allocate(|| Err(other.clone())), Err(other));
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn all_are_forgotten_on_demand() {
    let last_resort = LastResort::new();
    let told = told(&last_resort);
    last_resort.before_giving_up(|_| true);
    last_resort.clear();
    assert_eq!(last_resort.allocate(|| Err(refused(0))).unwrap_err().out_of_memory().unwrap().retries, 0);
    assert!(told.lock().unwrap().is_empty());
}
