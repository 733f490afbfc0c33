//! The text of an error does not repeat its cause.

use std::error::Error;
use std::io;

use bfc_core::{AllocError, BlockError, SourceError};
use highwater_traces::{ReplayError, TraceError, TracePlace, TraceProblem};

/// Fails if an error's text has the text of its cause in it.
fn check(error: &dyn Error) {
    let text = error.to_string();
    if let Some(cause) = error.source() {
        assert!(!text.contains(&cause.to_string()), "{cause} is told twice in {error:?}");
        check(cause);
    }
}

#[test]
fn errors_do_not_return_a_cause_that_their_text_includes() {
    let no_such_file = TraceProblem::Io(io::Error::from(io::ErrorKind::NotFound));
    let source =
        AllocError::Source { allocator: "pool".to_owned(), error: SourceError::Exhausted { bytes: 1 } };
    let errors: Vec<Box<dyn Error>> = vec![
        Box::new(TraceError { place: TracePlace::Line(1), problem: no_such_file }),
        Box::new(ReplayError::Free { event: 1, error: BlockError::Untracked }),
        Box::new(ReplayError::Alloc { event: 1, label: "x".to_owned(), bytes: 1, error: source }),
    ];
    errors.iter().for_each(|error| check(&**error));
}
