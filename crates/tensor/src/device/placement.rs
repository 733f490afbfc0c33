//! Placement log: reports the device of each op and the reason to a listener.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bfc_core::{ThreadVariable, thread_scoped};

use crate::device::Device;

/// The reason why an op runs on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementReason {
    /// The device of its inputs.
    Inputs,
    /// The device that the caller requested for a new tensor.
    Requested,
    /// The device of its forward pass.
    Backward,
}

impl fmt::Display for PlacementReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Inputs => "device of its inputs",
            Self::Requested => "requested",
            Self::Backward => "device of its forward pass",
        })
    }
}

/// An op and its device. Prints as `matmul on cpu:0: device of its inputs`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OpPlacement<'a> {
    /// The op.
    pub op: &'static str,
    /// The device that runs it.
    pub device: &'a Device,
    /// The reason.
    pub reason: PlacementReason,
}

impl fmt::Display for OpPlacement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: {}", self.op, self.device, self.reason)
    }
}

thread_scoped! {
    /// Whether this thread is calling a listener.
    static IS_NOTIFYING: bool = false;
}

/// Receives the placement of each op.
type Listener = Arc<dyn Fn(&OpPlacement<'_>) + Send + Sync>;

/// Reports the placement of each op to a listener. Without a listener this costs one relaxed load per op.
#[derive(Default)]
pub(crate) struct PlacementLog {
    listening: AtomicBool,
    listener: RwLock<Option<Listener>>,
}

impl PlacementLog {
    pub(crate) fn set_listener(&self, listener: Option<Listener>) {
        let listening = listener.is_some();
        let mut own = self.listener.write().unwrap_or_else(PoisonError::into_inner);
        let previous = std::mem::replace(&mut *own, listener);
        self.listening.store(listening, Ordering::Relaxed);
        drop(own);
        // Without the lock, as dropping the captures of the previous listener may run ops.
        drop(previous);
    }

    #[inline]
    pub(crate) fn notify(&self, op: &'static str, device: &Device, reason: PlacementReason) {
        if self.listening.load(Ordering::Relaxed) {
            self.call_listener(op, device, reason);
        }
    }

    #[cold]
    fn call_listener(&self, op: &'static str, device: &Device, reason: PlacementReason) {
        // Skips ops that the listener itself runs, which would recurse without end.
        if IS_NOTIFYING.get() {
            return;
        }
        let _guard = IS_NOTIFYING.enter(true);
        // Clones the listener, so that it may replace itself during the call.
        let listener = self.listener.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(listener) = listener {
            listener(&OpPlacement { op, device, reason });
        }
    }
}

impl fmt::Debug for PlacementLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacementLog").field("listening", &self.listening).finish_non_exhaustive()
    }
}
