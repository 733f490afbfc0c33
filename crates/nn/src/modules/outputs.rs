//! The outputs of modules in a dry run, for summaries of models.

use std::cell::RefCell;
use std::collections::HashMap;

use bfc_core::OwnerId;
use highwater_tensor::{DType, Result, Shape, Tensor};
use highwater_tracking::here;

/// Element types and shapes by module.
pub(crate) type Outputs = HashMap<OwnerId, (DType, Shape)>;

thread_local! {
    /// The outputs so far, while a program runs in `record_outputs`.
    static OUTPUTS: RefCell<Option<Outputs>> = const { RefCell::new(None) };
}

/// Runs a program, and returns its result and the last outputs of the modules that it ran on dry devices.
pub(crate) fn record_outputs<R>(program: impl FnOnce() -> R) -> (R, Outputs) {
    // Restores the outputs of an enclosing call, also after a panic.
    struct Restore(Option<Outputs>);
    impl Drop for Restore {
        fn drop(&mut self) {
            OUTPUTS.set(self.0.take());
        }
    }
    let _restore = Restore(OUTPUTS.replace(Some(Outputs::new())));
    let result = program();
    (result, OUTPUTS.take().unwrap_or_default())
}

/// Ends the forward pass of the current module: notes its output for a summary, or adds its path to the error.
#[inline]
pub(crate) fn output(result: Result<Tensor>) -> Result<Tensor> {
    match result {
        Ok(y) => {
            if y.device().is_dry() {
                note(&y);
            }
            Ok(y)
        }
        Err(error) => Err(error.in_module()),
    }
}

#[cold]
fn note(y: &Tensor) {
    OUTPUTS.with_borrow_mut(|outputs| {
        if let Some(outputs) = outputs {
            outputs.insert(here().module, (y.dtype(), *y.shape()));
        }
    });
}
