//! JSON lines with prompts and answers.

use std::io::{self, BufRead, Read};
use std::path::Path;

use highwater_files::lines::{LineProblem, LineReader};
use highwater_tensor::error::DataError;
use serde::Deserialize;

use super::PairOptions;
use crate::file_kind;
use highwater_files::FileKind;

/// The texts of a sample, before they are encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairText {
    /// A text, and its continuation.
    Completion {
        /// The text that the model reads.
        prompt: String,
        /// The text that the model learns to write.
        answer: String,
    },
    /// The messages of a conversation.
    Chat(Vec<ChatTurn>),
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ChatTurn {
    /// The author: usually `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// The fields of a line. Others are ignored.
#[derive(Deserialize)]
struct Fields {
    prompt: Option<String>,
    answer: Option<String>,
    completion: Option<String>,
    messages: Option<Vec<ChatTurn>>,
}

/// The most characters of a message about a line, which may quote the line.
const MAX_MESSAGE: usize = 200;

/// The expected forms of a line.
const EXPECTED: &str = "expected \"prompt\" with \"answer\" or \"completion\", or \"messages\"";

impl Fields {
    fn into_text(self) -> Result<PairText, &'static str> {
        match self {
            Self { prompt: Some(prompt), answer: Some(answer), completion: None, messages: None }
            | Self { prompt: Some(prompt), answer: None, completion: Some(answer), messages: None } => {
                Ok(PairText::Completion { prompt, answer })
            }
            Self { prompt: None, answer: None, completion: None, messages: Some(messages) } => {
                Ok(PairText::Chat(messages))
            }
            _ => Err(EXPECTED),
        }
    }
}

/// Calls a function with the sample of each line.
pub(super) fn each(
    source: &mut dyn BufRead,
    path: &Path,
    options: &PairOptions,
    call: &mut dyn FnMut(&PairText) -> Result<(), String>,
) -> Result<(), DataError> {
    let kind = source.fill_buf().map_err(|error| io_error(path, &error))?;
    let kind = &kind[..kind.len().min(FileKind::START_BYTES)];
    if let Some(problem) = file_kind::mistaken(kind, "JSON lines") {
        return Err(DataError::WrongFile { path: path.to_owned(), problem });
    }
    let mut source = source.take(options.max_bytes.saturating_add(1));
    let mut samples = 0;
    let mut lines = LineReader::new(&mut source, options.max_line_bytes);
    loop {
        let read = lines.read();
        let (line, start, limit) = (lines.number, lines.start, options.max_bytes);
        if lines.end > limit {
            return Err(DataError::TooLong { path: path.to_owned(), limit });
        }
        let too_large = |what, limit| DataError::TooLarge { path: path.to_owned(), line, what, limit };
        match read {
            Ok(true) => {}
            Ok(false) => break,
            Err(LineProblem::Io(error)) => return Err(io_error(path, &error)),
            Err(_) => return Err(too_large("bytes in a line", options.max_line_bytes)),
        }
        let bad = |offset: u64, problem: String| DataError::BadLine {
            path: path.to_owned(),
            line,
            offset,
            problem,
        };
        if !lines.line.iter().all(u8::is_ascii_whitespace) {
            if samples == options.max_samples {
                return Err(too_large("samples", options.max_samples));
            }
            samples += 1;
            let fields: Fields = serde_json::from_slice(&lines.line).map_err(|error| {
                // The column is that of the last byte read, counted from 1.
                let text = error.to_string();
                let problem = text.rsplit_once(" at line ").map_or(&*text, |(problem, _)| problem);
                bad(start + error.column().saturating_sub(1) as u64, beginning(problem))
            })?;
            let text = fields.into_text().map_err(|problem| bad(start, problem.to_owned()))?;
            call(&text).map_err(|problem| bad(start, beginning(&problem)))?;
        }
    }
    if samples == 0 { Err(DataError::Empty { path: path.to_owned() }) } else { Ok(()) }
}

fn beginning(problem: &str) -> String {
    problem.chars().take(MAX_MESSAGE).collect()
}

pub(super) fn io_error(path: &Path, error: &io::Error) -> DataError {
    DataError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}
