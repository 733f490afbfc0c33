//! The outputs of modules in a dry run, for summaries of models.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use bfc_core::{OwnerId, ThreadVariable, thread_scoped};
use highwater_tensor::{DType, Result, Shape, Tensor};
use highwater_tracking::here;

/// Element types and shapes by module.
pub(crate) type Outputs = HashMap<OwnerId, (DType, Shape)>;

thread_scoped! {
    /// The outputs so far, while a program runs in `record_outputs`.
    static OUTPUTS: Option<Rc<RefCell<Outputs>>> = None;
}

/// Runs a program, and returns its result and the last outputs of the modules that it ran on dry devices.
pub(crate) fn record_outputs<R>(program: impl FnOnce() -> R) -> (R, Outputs) {
    let outputs = Rc::new(RefCell::new(Outputs::new()));
    let result = OUTPUTS.within(Some(Rc::clone(&outputs)), program);
    (result, outputs.take())
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
    if let Some(outputs) = OUTPUTS.read(Clone::clone) {
        outputs.borrow_mut().insert(here().module, (y.dtype(), *y.shape()));
    }
}
