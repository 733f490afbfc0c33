//! Signals that ask a run to end.
//!
//! The first SIGINT (Ctrl-C) or SIGTERM sets a flag, which the loop reads after each step. The second ends the process,
//! as does every signal while no loop listens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The handlers of the process.
static HANDLERS: Mutex<Option<Handlers>> = Mutex::new(None);

struct Handlers {
    /// Set from the first signal on, and while no loop listens.
    stop: Arc<AtomicBool>,
    listeners: usize,
}

/// Notices the first SIGINT or SIGTERM while it exists; a second signal ends the process.
///
/// [`Trainer`](crate::Trainer) uses it. A loop of your own can do the same:
///
/// ```
/// use highwater::train::StopSignal;
/// let stop = StopSignal::listen();
/// for step in 0..10 {
///     // the step
///     if stop.is_requested() {
///         break; // and save
///     }
/// }
/// # assert!(!stop.is_requested());
/// ```
#[derive(Debug)]
pub struct StopSignal {
    stop: Arc<AtomicBool>,
}

impl StopSignal {
    /// Begins to listen. If the system refuses the handlers, signals end the process as usual.
    #[must_use]
    pub fn listen() -> Self {
        let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
        let handlers = handlers.get_or_insert_with(Handlers::install);
        if handlers.listeners == 0 {
            handlers.stop.store(false, Ordering::SeqCst);
        }
        handlers.listeners += 1;
        Self { stop: Arc::clone(&handlers.stop) }
    }

    /// Returns whether a signal has arrived.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

impl Drop for StopSignal {
    fn drop(&mut self) {
        let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handlers) = handlers.as_mut() {
            handlers.listeners -= 1;
            if handlers.listeners == 0 {
                handlers.stop.store(true, Ordering::SeqCst);
            }
        }
    }
}

impl Handlers {
    fn install() -> Self {
        let stop = Arc::new(AtomicBool::new(true));
        for signal in [SIGINT, SIGTERM] {
            // In this order: a signal while the flag is set ends the process, and otherwise sets the flag.
            let ends = flag::register_conditional_default(signal, Arc::clone(&stop));
            if ends.is_ok() {
                let _ = flag::register(signal, Arc::clone(&stop));
            }
        }
        Self { stop, listeners: 0 }
    }
}
