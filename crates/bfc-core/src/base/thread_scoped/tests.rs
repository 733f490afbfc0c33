use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc;

use super::{CUTS, ThreadScopedGuard, ThreadVariable};

thread_scoped! {
    static NUMBER: u32 = 0;
}

thread_scoped! {
    static OTHER: u32 = 0;
}

thread_scoped! {
    static SHARED: Option<Rc<&'static str>> = None;
}

#[test]
fn values_nest_and_threads_have_their_own() {
    let outer = NUMBER.enter(1);
    let inner = NUMBER.enter(2);
    assert_eq!((NUMBER.get(), OTHER.get()), (2, 0));
    std::thread::scope(|scope| scope.spawn(|| assert_eq!(NUMBER.get(), 0)).join().unwrap());
    drop(inner);
    assert_eq!(NUMBER.get(), 1);
    assert_eq!(NUMBER.within(3, || NUMBER.get()), 3);
    drop(outer);
    assert_eq!(NUMBER.get(), 0);
}

#[test]
fn a_guard_ends_those_within_it_and_no_later_ones() {
    let [a, b, c] = [1, 2, 3].map(|value| NUMBER.enter(value));
    drop(b);
    assert_eq!(NUMBER.get(), 1);
    let d = NUMBER.enter(4);
    drop(c);
    assert_eq!(NUMBER.get(), 4);
    let other = OTHER.enter(5);
    drop(a);
    assert_eq!((NUMBER.get(), OTHER.get()), (0, 5));
    drop((d, other));
    assert_eq!((NUMBER.get(), OTHER.get()), (0, 0));
}

#[test]
fn values_are_restored_while_unwinding() {
    let _outer = NUMBER.enter(1);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let _inner = NUMBER.enter(2);
        NUMBER.within(3, || std::panic::resume_unwind(Box::new("a failed step")))
    }));
    assert!(failed.is_err());
    assert_eq!(NUMBER.get(), 1);
}

#[test]
fn a_value_is_dropped_once_and_its_destructor_finds_the_restored_one() {
    struct Observe(Rc<RefCell<Vec<u32>>>);
    impl Drop for Observe {
        fn drop(&mut self) {
            let found = OBSERVED.read(|value| value.as_ref().map_or(0, |(number, _)| *number));
            self.0.borrow_mut().push(found);
        }
    }
    thread_scoped! {
        static OBSERVED: Option<(u32, Observe)> = None;
    }
    let found = Rc::new(RefCell::new(Vec::new()));
    let [outer, middle, inner] =
        [1, 2, 3].map(|number| OBSERVED.enter(Some((number, Observe(Rc::clone(&found))))));
    drop(middle);
    assert_eq!(*found.borrow(), [1], "of the innermost value");
    drop(inner);
    assert_eq!(*found.borrow(), [1, 1], "of the value that the inner guard held");
    drop(outer);
    assert_eq!(*found.borrow(), [1, 1, 0]);
    assert!(OBSERVED.read(Option::is_none));
}

/// A guard in a thread-local variable of its thread.
#[test]
fn guards_and_values_work_while_a_thread_ends() {
    /// Enters and leaves values when it is dropped, and tells what it found.
    struct AtEnd(Vec<ThreadScopedGuard<NUMBER>>, mpsc::Sender<[u32; 4]>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            let before = NUMBER.get();
            // In the order of entry: the first ends all others, if the thread still has its list of cuts.
            self.0.drain(..).for_each(drop);
            let (outside, within) = (NUMBER.get(), NUMBER.within(8, || NUMBER.get()));
            let shared = SHARED.within(Some(Rc::new("end")), || SHARED.read(Option::is_some));
            self.1.send([before, outside, within, u32::from(shared)]).unwrap();
        }
    }
    std::thread_local!(static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) });

    for guards in [1, 3] {
        // Threads drop their variables in the opposite order of their first use.
        for has_cuts_first in [false, true] {
            let (tell, told) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                if has_cuts_first {
                    CUTS.with(|_| ());
                }
                AT_END.with(|_| ());
                CUTS.with(|_| ());
                let entered = (1..=guards).map(|value| NUMBER.enter(value)).collect();
                AT_END.set(Some(AtEnd(entered, tell)));
            });
            thread.join().unwrap();
            let [before, outside, within, shared] = told.recv().unwrap();
            assert_eq!((before, within, shared), (guards, 8, 1));
            // Without the list, only the last of the guards in disorder has an effect.
            let expected = if guards == 1 || has_cuts_first { 0 } else { guards - 1 };
            assert_eq!(outside, expected, "{guards} guards, {has_cuts_first}");
        }
    }
}

/// Compares with a complete stack that is truncated at a guard, if it contains the guard.
#[test]
fn guards_may_be_dropped_in_any_order() {
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % bound
    };
    for _ in 0..2000 {
        let (mut stack, mut held) = (Vec::new(), Vec::new());
        let leave = |stack: &mut Vec<u32>, (guard, number): (ThreadScopedGuard<NUMBER>, u32)| {
            drop(guard);
            let at = stack.iter().position(|&entered| entered == number);
            stack.truncate(at.unwrap_or(stack.len()));
        };
        let check = |stack: &[u32]| {
            assert_eq!(NUMBER.get(), stack.last().copied().unwrap_or(0));
            assert_eq!(NUMBER::with(|state| state.top.get().depth()), Some(stack.len() as u64));
        };
        for number in 1..=40 {
            if held.is_empty() || below(5) < 3 {
                held.push((NUMBER.enter(number), number));
                stack.push(number);
            } else {
                // Mostly in order, as in programs.
                let at = if below(2) == 0 { held.len() - 1 } else { below(held.len()) };
                leave(&mut stack, held.remove(at));
            }
            check(&stack);
        }
        while let Some(last) = held.pop() {
            leave(&mut stack, last);
            check(&stack);
        }
        assert!(CUTS.with_borrow(Vec::len) <= 40);
    }
}
