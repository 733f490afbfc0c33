//! Which op ran where, and why: told on request.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::device::Device;

/// Why an op ran on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementReason {
    /// Its inputs are there.
    Inputs,
    /// It makes a new tensor, and was given the device or an allocator of it.
    Asked,
    /// It is the backward of an op that ran there.
    Backward,
}

impl fmt::Display for PlacementReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Inputs => "its inputs are there",
            Self::Asked => "asked for",
            Self::Backward => "its forward ran there",
        })
    }
}

/// One op and where it runs. Prints as `matmul on cpu:0: its inputs are there`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Placement<'a> {
    /// The op.
    pub op: &'static str,
    /// Where it runs.
    pub device: &'a Device,
    /// Why there.
    pub reason: PlacementReason,
}

impl fmt::Display for Placement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.op, self.device, self.reason)
    }
}

thread_local! {
    /// Whether this thread tells a listener just now.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Ends the telling, also by a panic.
struct Telling;

impl Drop for Telling {
    fn drop(&mut self) {
        TELLING.set(false);
    }
}

/// Who is told of placements.
type Listener = Arc<dyn Fn(&Placement<'_>) + Send + Sync>;

/// Tells a listener of every op's placement; one relaxed load per op while nobody listens.
#[derive(Default)]
pub(crate) struct PlacementLog {
    listening: AtomicBool,
    listener: RwLock<Option<Listener>>,
}

impl PlacementLog {
    pub(crate) fn listen(&self, listener: Option<Listener>) {
        let listening = listener.is_some();
        let mut own = self.listener.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *own, listener);
        self.listening.store(listening, Ordering::Relaxed);
        drop(own);
        // Without the lock: what the former listener holds may run ops when it is dropped.
        drop(former);
    }

    #[inline]
    pub(crate) fn tell(&self, op: &'static str, device: &Device, reason: PlacementReason) {
        if self.listening.load(Ordering::Relaxed) {
            self.tell_listener(op, device, reason);
        }
    }

    #[cold]
    fn tell_listener(&self, op: &'static str, device: &Device, reason: PlacementReason) {
        // An op that the listener itself runs is not told: it would tell of another one without end.
        if TELLING.replace(true) {
            return;
        }
        let _telling = Telling;
        // The listener is cloned out, so that it may itself change the listener.
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(listener) = listener {
            listener(&Placement { op, device, reason });
        }
    }
}

impl fmt::Debug for PlacementLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacementLog").field("listening", &self.listening).finish_non_exhaustive()
    }
}
