//! Thread-local values that guards set for a while, such as the scope of the running layer or the recording mode.
//!
//! All of them follow one rule. Guards form a stack. Dropping a guard restores the value from before it, and ends all
//! guards that were made within it: these have no effect when they are dropped later.
//!
//! ```text
//!               guards    value
//! make A, B, C  A B C     C
//! drop B        A         A        B has ended C too
//! make D        A D       D
//! drop C        A D       D        no effect
//! ```
//!
//! So guards that are dropped out of order leave nothing behind, and do not change later values.
//!
//! Only the top of the stack is stored: each guard holds the value below its own. A guard that is not the top when it is
//! dropped *cuts* the stack. The cut is stored, so that the guards that it has ended can be recognized.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;

use super::sync::thread_local;

/// The state of a [variable](ThreadVariable) on one thread. [`thread_scoped!`](crate::thread_scoped) declares variables.
pub struct ThreadScoped<T> {
    value: Cell<T>,
    top: Cell<Position>,
    /// The number of cuts so far, in the bits of a [`Position`].
    cuts: Cell<u64>,
}

/// A position in the stack of guards: the depth in the low bits, and the number of earlier cuts in the high bits. So it is
/// unique among the guards that exist, also among those that a cut has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position(u64);

impl Position {
    const DEPTH_BITS: u32 = 24;
    const ONE_CUT: u64 = 1 << Self::DEPTH_BITS;
    /// The position without guards.
    const OUTSIDE: Self = Self(0);

    #[inline]
    const fn depth(self) -> u64 {
        self.0 & (Self::ONE_CUT - 1)
    }

    const fn cuts(self) -> u64 {
        self.0 & !(Self::ONE_CUT - 1)
    }
}

/// A cut of a variable's stack.
#[derive(Debug)]
struct Cut {
    /// The address of the variable's state.
    variable: usize,
    /// The depth of the stack after the cut.
    depth: u64,
    /// The number of earlier cuts, in the bits of a [`Position`].
    cuts: u64,
}

thread_local! {
    /// The cuts that may have ended guards which still exist. A variable has at most as many as its deepest nesting.
    ///
    /// They are not fields of the variables: a variable without a destructor is faster to access.
    static CUTS: RefCell<Vec<Cut>> = const { RefCell::new(Vec::new()) };
}

impl<T> ThreadScoped<T> {
    /// Creates the state of a thread without guards.
    #[must_use]
    pub const fn new(outside: T) -> Self {
        Self { value: Cell::new(outside), top: Cell::new(Position::OUTSIDE), cuts: Cell::new(0) }
    }

    /// Sets the value. Returns the previous one, and the new position with the one below it.
    #[inline]
    fn enter(&self, value: T) -> (T, Position, Position) {
        let below = self.top.get();
        let top = Position((below.depth() + 1) | self.cuts.get());
        self.top.set(top);
        (self.value.replace(value), top, below)
    }

    /// Removes a position from the stack, and all above it. Returns false if a cut has removed it before.
    #[inline]
    fn leave(&self, top: Position, below: Position) -> bool {
        if self.top.get() != top && !self.cut(top, below) {
            return false;
        }
        self.top.set(below);
        true
    }

    /// Ends the guards above a position that is not the top. Returns false if a cut has removed the position itself.
    #[cold]
    fn cut(&self, top: Position, below: Position) -> bool {
        let variable = std::ptr::from_ref(self).addr();
        let ends = CUTS.try_with(|cuts| {
            let mut cuts = cuts.borrow_mut();
            let has_ended = |cut: &Cut| cut.depth < top.depth() && top.cuts() <= cut.cuts;
            if cuts.iter().any(|cut| cut.variable == variable && has_ended(cut)) {
                return false;
            }
            // The new cut includes all deeper ones.
            let cut = Cut { variable, depth: below.depth(), cuts: self.cuts.get() };
            cuts.retain(|other| other.variable != variable || other.depth < cut.depth);
            cuts.push(cut);
            self.cuts.set(self.cuts.get() + Position::ONE_CUT);
            true
        });
        // A thread that is ending has dropped the list.
        ends.unwrap_or(false)
    }
}

impl<T> fmt::Debug for ThreadScoped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadScoped").field("top", &self.top).finish_non_exhaustive()
    }
}

/// A thread-local variable whose value [guards](ThreadScopedGuard) set for a while. See
/// [`thread_scoped!`](crate::thread_scoped).
pub trait ThreadVariable: Copy + 'static {
    /// The type of the value.
    type Value: 'static;

    /// The value of a thread without guards.
    const OUTSIDE: Self::Value;

    /// Calls a function with the state of this thread; `None` if the thread is ending and has dropped it.
    #[doc(hidden)]
    fn with<R>(f: impl FnOnce(&ThreadScoped<Self::Value>) -> R) -> Option<R>;

    /// Returns the value.
    #[inline]
    fn get(self) -> Self::Value
    where
        Self::Value: Copy,
    {
        Self::with(|state| state.value.get()).unwrap_or(Self::OUTSIDE)
    }

    /// Calls `f` with the value. `f` must not use the variable: it would find [`OUTSIDE`](Self::OUTSIDE).
    #[inline]
    fn read<R>(self, f: impl FnOnce(&Self::Value) -> R) -> R {
        let value = Self::with(|state| state.value.replace(Self::OUTSIDE)).unwrap_or(Self::OUTSIDE);
        let result = f(&value);
        Self::with(|state| state.value.set(value));
        result
    }

    /// Sets the value until the guard is dropped.
    #[inline]
    fn enter(self, value: Self::Value) -> ThreadScopedGuard<Self> {
        let entered = Self::with(|state| state.enter(value));
        let (before, top, below) = entered.unwrap_or((Self::OUTSIDE, Position::OUTSIDE, Position::OUTSIDE));
        ThreadScopedGuard { before, top, below, of_thread: PhantomData }
    }

    /// Runs `program` with a value.
    #[inline]
    fn within<R>(self, value: Self::Value, program: impl FnOnce() -> R) -> R {
        let _guard = self.enter(value);
        program()
    }
}

/// Restores the value of a [variable](ThreadVariable) when it is dropped, also after a panic. If a guard around it was
/// dropped before, it has no effect.
#[must_use = "dropping the guard restores the value"]
pub struct ThreadScopedGuard<V: ThreadVariable> {
    before: V::Value,
    top: Position,
    below: Position,
    /// The value belongs to one thread, so the guard must not move to another. Other threads may refer to it.
    of_thread: PhantomData<MutexGuard<'static, ()>>,
}

impl<V: ThreadVariable> Drop for ThreadScopedGuard<V> {
    #[inline]
    fn drop(&mut self) {
        V::with(|state| {
            if state.leave(self.top, self.below) {
                let before = std::mem::replace(&mut self.before, V::OUTSIDE);
                // The guard drops the old value after the access: its destructor may use the variable.
                self.before = state.value.replace(before);
            }
        });
    }
}

impl<V: ThreadVariable> fmt::Debug for ThreadScopedGuard<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadScopedGuard").finish_non_exhaustive()
    }
}

/// Declares a thread-local variable whose value guards set for a while.
///
/// [`enter`](crate::ThreadVariable::enter) returns a guard. Dropping a guard restores the value from before it, and ends
/// all guards that were made within it. So guards may be dropped in any order.
///
/// The variable has no destructor. It remains accessible while its thread ends, and a value that a forgotten guard has set
/// is not dropped.
///
/// ```
/// use bfc_core::{ThreadVariable, thread_scoped};
///
/// thread_scoped! {
///     /// Whether this thread writes logs.
///     static IS_LOGGING: bool = true;
/// }
///
/// let outer = IS_LOGGING.enter(false);
/// let inner = IS_LOGGING.enter(true);
/// drop(outer);
/// assert!(IS_LOGGING.get(), "the value from before `outer`");
/// drop(inner);
/// assert!(IS_LOGGING.get(), "`inner` ended with `outer`");
/// assert!(!IS_LOGGING.within(false, || IS_LOGGING.get()));
/// ```
#[macro_export]
macro_rules! thread_scoped {
    ($(#[$attribute:meta])* $visibility:vis static $name:ident: $value:ty = $outside:expr;) => {
        $(#[$attribute])*
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "written as a static")]
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name;

        impl $crate::ThreadVariable for $name {
            type Value = $value;
            const OUTSIDE: $value = $outside;

            #[inline]
            fn with<R>(f: impl FnOnce(&$crate::ThreadScoped<$value>) -> R) -> Option<R> {
                type State = std::mem::ManuallyDrop<$crate::ThreadScoped<$value>>;
                $crate::sync::thread_local! {
                    static STATE: State = const { State::new($crate::ThreadScoped::new($outside)) };
                }
                STATE.try_with(|state| f(state)).ok()
            }
        }
    };
}

#[cfg(all(test, not(shuttle)))]
mod tests;
