use std::sync::atomic::AtomicU64;

use bfc_core::{AddressOnlyMemory, Allocation, BfcAllocator, BfcConfig, KIB, MIB, OwnerBytes};

use super::*;
use crate::{Tracker, module};

fn pool() -> Arc<dyn Allocator> {
    let config = BfcConfig::new(Bytes::mib(64)).with_retry(false);
    Arc::new(BfcAllocator::new("cpu:0", Arc::new(AddressOnlyMemory::new()), config))
}

fn take(tracker: &Arc<Tracker>, pool: &Arc<dyn Allocator>, bytes: u64) -> Result<Allocation, AllocError> {
    let run = tracker.begin("op");
    Allocation::new(&run.track(pool), &Request::new(bytes).with_category(Category::Activation))
}

#[test]
fn a_scope_may_take_its_budget_to_the_byte_and_no_more() {
    let (tracker, pool) = (Tracker::new(), pool());
    let scope = module("budget-exact").limit(Bytes::kib(8));
    let inner = module("inner");
    let first = take(&tracker, &pool, 4 * KIB).unwrap();
    drop(inner);
    let second = take(&tracker, &pool, 4 * KIB).unwrap();
    let error = take(&tracker, &pool, 1).unwrap_err();
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.verdict, Verdict::OverBudget);
    let reached = report.budget.unwrap();
    assert_eq!(
        (reached.scope.path().as_str(), reached.limit, reached.live),
        ("budget-exact", 8 * KIB, 8 * KIB)
    );
    assert_eq!(report.holdings.total(), 8 * KIB, "of the scope alone");
    let checkpoint = report.what_if.checkpointed.unwrap();
    assert!(checkpoint.fits && checkpoint.bytes == 4 * KIB);
    assert!(
        error.to_string().contains("8.00 KiB in use of the budget of 8.00 KiB for budget-exact"),
        "{error}"
    );
    drop(first);
    assert!(take(&tracker, &pool, 4 * KIB).is_ok(), "what is given back is there again");
    drop((second, scope));
}

#[test]
fn rounding_counts() {
    let (tracker, pool) = (Tracker::new(), pool());
    let _scope = module("budget-rounding").limit(Bytes(300));
    assert!(take(&tracker, &pool, 256).is_ok());
    assert!(take(&tracker, &pool, 257).is_err(), "the pool grants 512");
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn a_budget_binds_no_other_module_and_ends_with_its_scope() {
    let (tracker, pool) = (Tracker::new(), pool());
    let scope = module("budget-a").limit(Bytes::kib(1));
    assert!(take(&tracker, &pool, MIB).is_err());
    drop(scope);
    let _budget = Budget::new("budget-a", Bytes::kib(1));
    {
        let _other = module("budget-b");
        assert!(take(&tracker, &pool, MIB).is_ok());
    }
    let _scope = module("budget-a.below");
    assert!(take(&tracker, &pool, MIB).is_err(), "a budget by path binds all below it");
}

#[test]
fn a_callback_may_free_memory_of_a_scope_over_budget() {
    let (tracker, pool) = (Tracker::new(), pool());
    let _scope = module("budget-callback").limit(Bytes::kib(8));
    let cache = Arc::new(Mutex::new(vec![take(&tracker, &pool, 6 * KIB).unwrap()]));
    let kept = Arc::clone(&cache);
    tracker
        .last_resort()
        .before_giving_up(move |report| report.verdict == Verdict::OverBudget && lock(&kept).pop().is_some());
    assert!(take(&tracker, &pool, 4 * KIB).is_ok());
    assert_eq!(tracker.last_resort().rescued(), 1);
}

#[test]
fn threads_together_never_exceed_a_budget_and_get_all_of_it() {
    let pool = pool();
    let owner = OwnerId::intern(OwnerId::ROOT, "budget-threads");
    let _budget = Budget::of(owner, Bytes::kib(64));
    let (most, all_held) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let tracker = Tracker::new();
                let _scope = module("budget-threads");
                let mut held = Vec::new();
                for _ in 0..12 {
                    held.extend(take(&tracker, &pool, KIB));
                    let OwnerBytes { live, .. } = pool.owner_bytes(owner);
                    most.fetch_max(live, Ordering::Relaxed);
                }
                all_held.lock().unwrap().extend(held);
            });
        }
    });
    assert_eq!(all_held.lock().unwrap().len(), 64, "96 were asked for, and nobody gave any back");
    assert_eq!(most.load(Ordering::Relaxed), 64 * KIB);
}
