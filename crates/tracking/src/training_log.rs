//! The log of a training run: one line of JSON per step, as the examples write it with `--log`.
//!
//! ```text
//! {"step":0,"seconds":0.012,"loss":2.31,"learning_rate":0.005,"bytes_in_use":418304}
//! {"step":1,"seconds":0.015,"loss":2.27,"learning_rate":0.005,"bytes_in_use":418304}
//! ```
//!
//! Every line is an object with the integer `step`, and with `seconds` since the run began. Both never decrease. Each
//! further field is a point of the curve with its name:
//!
//! - A number is a point.
//! - `null` is a gap: the step has no such value.
//! - `NaN`, `Infinity` and `-Infinity` are gaps too, and the log [counts](TrainingLog::non_finite) them. They are strings, or bare words
//!   as Python's `json` writes them.
//! - Other values are ignored. So are the bytes in use, which a recording contains.
//!
//! An incomplete last line, which a killed run leaves, is ignored. The line through a curve's points
//! [breaks](Curve::breaks) at gaps and at missing steps.

mod breaks;
mod words;

use std::collections::HashMap;
use std::io::BufRead;

use bfc_core::printable;
use highwater_files::FileKind;
use highwater_files::lean;
use highwater_files::lines::{LineProblem, LineReader, beginning};
use serde::Serialize;
use serde_json::Value;

/// Fields that a recording contains.
const LEFT_OUT: &[&str] = &["step", "seconds", "bytes_in_use", "peak_bytes_in_use"];

/// Limits of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingLogLimits {
    /// The longest line, in bytes.
    pub line_bytes: usize,
    /// The most points of all curves. Each takes 24 bytes, and 8 more where a line breaks.
    pub points: usize,
    /// The most lines without a point, including blank lines.
    pub idle_lines: usize,
    /// Most curves.
    pub curves: usize,
    /// The longest name of a curve, in bytes.
    pub name_bytes: usize,
}

impl Default for TrainingLogLimits {
    fn default() -> Self {
        Self { line_bytes: 1 << 16, points: 1 << 22, idle_lines: 1 << 20, curves: 64, name_bytes: 200 }
    }
}

/// A file that is not a log.
#[derive(thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TrainingLogError {
    /// The line number, counted from 1.
    pub line: u64,
    /// The problem.
    pub problem: TrainingLogProblem,
}

bfc_core::debug_as_message!(TrainingLogError);

/// A problem in a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingLogProblem {
    /// The line is unreadable or too long.
    #[error(transparent)]
    Line(LineProblem),
    /// The file is of another kind.
    #[error("not a training log: {kind}; {}", kind.advice())]
    WrongFile {
        /// The detected kind of file.
        kind: FileKind,
    },
    /// The line is not a JSON object.
    #[error("expected a JSON object, found {found:?}")]
    NoObject {
        /// The beginning of the line.
        found: String,
    },
    /// A required number is missing or invalid.
    #[error("{name:?} must be {expected}, found {found}", found = printable(found))]
    Number {
        /// The number's name.
        name: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The actual value.
        found: String,
    },
    /// Time or steps decrease, for example because a file contains two logs.
    #[error("{name:?} decreases from {before} to {after}")]
    Backwards {
        /// The name of the field.
        name: &'static str,
        /// The value on the previous line.
        before: f64,
        /// The value on this line.
        after: f64,
    },
    /// The log exceeds a limit.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// A moment of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CurvePoint {
    /// Nanoseconds since the run began.
    pub at_ns: u64,
    /// The step in the log.
    pub step: u64,
    /// A finite number.
    pub value: f64,
}

/// A curve: one field of the log over the run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Curve {
    /// The field's name, such as `loss`.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<CurvePoint>,
    /// The indices of the points before which the line breaks, in order. There the log has a gap, or a curve with a
    /// regular interval misses some steps.
    pub breaks: Vec<usize>,
}

/// The curves of a training run.
///
/// ```
/// use highwater_tracking::{TrainingLog, TrainingLogLimits};
/// let text = "{\"step\": 0, \"seconds\": 0.5, \"loss\": 2.25}\n{\"step\": 1, \"seconds\": 1, \"loss\": null}\n";
/// let log = TrainingLog::read(text.as_bytes(), &TrainingLogLimits::default())?;
/// assert_eq!((log.curves()[0].name.as_str(), log.curves()[0].points.len()), ("loss", 1));
/// assert_eq!(log.curves()[0].points[0].at_ns, 500_000_000);
///
/// let error = TrainingLog::read(&b"{\"step\": -1}\n"[..], &TrainingLogLimits::default()).unwrap_err();
/// assert_eq!(error.to_string(), "line 1: \"step\" must be an integer, found -1");
/// # Ok::<(), highwater_tracking::TrainingLogError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingLog {
    curves: Vec<Curve>,
    non_finite: Option<NonFinite>,
    lines: u64,
    cut: bool,
}

/// The values of a log that are NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NonFinite {
    /// The number of these values.
    pub count: u64,
    /// The name of the first one, shortened if it is long.
    pub name: String,
    /// The step of the first one.
    pub step: u64,
}

impl TrainingLog {
    /// Reads a log.
    ///
    /// Fails with a problem and its line number if the log is invalid or exceeds the limits.
    pub fn read(reader: impl BufRead, limits: &TrainingLogLimits) -> Result<Self, TrainingLogError> {
        let mut builder = Builder::new(*limits);
        let mut lines = LineReader::new(reader, limits.line_bytes);
        loop {
            let read = lines.read().map_err(TrainingLogProblem::Line);
            let added = read.and_then(|more| if more { builder.add(&mut lines) } else { Ok(false) });
            match added {
                Ok(true) => {}
                Ok(false) => return Ok(builder.finished()),
                Err(problem) => return Err(TrainingLogError { line: lines.number, problem }),
            }
        }
    }

    /// Returns the curves in the order of their first points. None is empty.
    #[must_use]
    pub fn curves(&self) -> &[Curve] {
        &self.curves
    }

    /// Returns the values that are NaN or infinite, if there are any. A `null` is not one of them.
    #[must_use]
    pub const fn non_finite(&self) -> Option<&NonFinite> {
        self.non_finite.as_ref()
    }

    /// Returns the number of lines.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns whether the last line was incomplete and ignored.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.cut
    }
}

/// A line as JSON, with strings for the bare words of non-finite numbers.
fn parse(line: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(line).or_else(|error| match words::quoted(line) {
        Some(quoted) => serde_json::from_slice(&quoted),
        None => Err(error),
    })
}

struct Builder {
    limits: TrainingLogLimits,
    log: TrainingLog,
    places: HashMap<String, usize>,
    /// Whether each curve has a gap after its last point.
    gaps: Vec<bool>,
    points: usize,
    idle_lines: usize,
    /// The value on the previous line.
    step: u64,
    seconds: f64,
}

impl Builder {
    fn new(limits: TrainingLogLimits) -> Self {
        let (log, places, gaps) = Default::default();
        Self { limits, log, places, gaps, points: 0, idle_lines: 0, step: 0, seconds: 0.0 }
    }

    /// Adds the last line that was read. Returns whether lines may follow.
    fn add(&mut self, lines: &mut LineReader<impl BufRead>) -> Result<bool, TrainingLogProblem> {
        if lines.line.iter().all(u8::is_ascii_whitespace) {
            self.idle()?;
            return Ok(true);
        }
        match parse(&lines.line) {
            Ok(Value::Object(fields)) => self.line(&fields).map(|()| true),
            Err(error) if error.is_eof() && self.log.lines > 0 && lines.at_end() => {
                self.log.cut = true;
                Ok(false)
            }
            _ => Err(match FileKind::of(&lines.line).filter(|_| lines.number == 1) {
                Some(kind) => TrainingLogProblem::WrongFile { kind },
                None => TrainingLogProblem::NoObject { found: lines.beginning() },
            }),
        }
    }

    fn line(&mut self, fields: &serde_json::Map<String, Value>) -> Result<(), TrainingLogProblem> {
        let wrong = |name, expected| {
            let found = fields.get(name).map_or_else(|| "nothing".to_owned(), Value::to_string);
            TrainingLogProblem::Number { name, expected, found: beginning(&found) }
        };
        let step = fields.get("step").and_then(Value::as_u64);
        let step = step.ok_or_else(|| wrong("step", "an integer"))?;
        let seconds = fields.get("seconds").and_then(Value::as_f64).filter(|&seconds| seconds >= 0.0);
        let seconds = seconds.ok_or_else(|| wrong("seconds", "a number from 0"))?;
        let falls = |name, before, after| Err(TrainingLogProblem::Backwards { name, before, after });
        if step < self.step {
            return falls("step", self.step as f64, step as f64);
        }
        if seconds < self.seconds {
            return falls("seconds", self.seconds, seconds);
        }
        (self.step, self.seconds) = (step, seconds);
        self.log.lines += 1;
        let (at_ns, points) = ((seconds * 1e9) as u64, self.points);
        for (name, value) in fields {
            if LEFT_OUT.contains(&name.as_str()) {
                continue;
            }
            // Integers beyond 2^53 lose digits, which no curve shows.
            if let Some(value) = value.as_f64() {
                self.point(name, CurvePoint { at_ns, step, value })?;
                continue;
            }
            let is_non_finite = value.as_str().is_some_and(words::is_non_finite);
            if is_non_finite {
                let first = || NonFinite { count: 0, name: beginning(name), step };
                self.log.non_finite.get_or_insert_with(first).count += 1;
            }
            if is_non_finite || value.is_null() {
                if let Some(&place) = self.places.get(name) {
                    self.gaps[place] = true;
                }
            }
        }
        if self.points == points { self.idle() } else { Ok(()) }
    }

    /// Counts a line without a point.
    fn idle(&mut self) -> Result<(), TrainingLogProblem> {
        self.idle_lines += 1;
        let limit = self.limits.idle_lines;
        if self.idle_lines > limit {
            return Err(TrainingLogProblem::TooMany { what: "lines without a point", limit });
        }
        Ok(())
    }

    fn point(&mut self, name: &str, point: CurvePoint) -> Result<(), TrainingLogProblem> {
        let TrainingLogLimits { points, curves, name_bytes, .. } = self.limits;
        let too_many = |what, limit| TrainingLogProblem::TooMany { what, limit };
        if self.points >= points {
            return Err(too_many("points", points));
        }
        let place = match self.places.get(name) {
            Some(&place) => place,
            None if self.log.curves.len() >= curves => return Err(too_many("curves", curves)),
            None if name.len() > name_bytes => return Err(too_many("bytes in a name", name_bytes)),
            None => {
                let place = self.log.curves.len();
                self.log.curves.push(Curve { name: name.to_owned(), points: Vec::new(), breaks: Vec::new() });
                self.gaps.push(false);
                self.places.insert(name.to_owned(), place);
                place
            }
        };
        self.points += 1;
        let curve = &mut self.log.curves[place];
        if std::mem::take(&mut self.gaps[place]) {
            lean::push(&mut curve.breaks, curve.points.len());
        }
        lean::push(&mut curve.points, point);
        Ok(())
    }

    fn finished(mut self) -> TrainingLog {
        for curve in &mut self.log.curves {
            curve.breaks.extend(breaks::missing_steps(&curve.points));
            curve.breaks.sort_unstable();
            curve.breaks.dedup();
        }
        self.log
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<TrainingLog, TrainingLogError> {
        TrainingLog::read(text.as_bytes(), &TrainingLogLimits::default())
    }

    #[test]
    fn each_number_is_a_curve_and_what_is_none_is_a_gap() {
        let log = read(
            "{\"step\":3,\"seconds\":0,\"loss\":2,\"rate\":0.5,\"bytes_in_use\":1,\"note\":\"x\",\"more\":{\"loss\":1}}\r\n\n\
             {\"step\":4,\"seconds\":1e-9,\"loss\":null,\"rate\":0.25,\"test_loss\":7.5}\n",
        )
        .unwrap();
        let points = |name: &str| -> Vec<(u64, u64, f64)> {
            let curve = log.curves().iter().find(|curve| curve.name == name).unwrap();
            curve.points.iter().map(|point| (point.at_ns, point.step, point.value)).collect()
        };
        assert_eq!(points("loss"), [(0, 3, 2.0)]);
        assert_eq!(points("rate"), [(0, 3, 0.5), (1, 4, 0.25)]);
        assert_eq!(points("test_loss"), [(1, 4, 7.5)]);
        assert_eq!((log.curves().len(), log.lines(), log.is_cut()), (3, 2, false));
    }

    #[test]
    fn nan_and_infinity_are_gaps_and_are_counted() {
        let whole = "{\"step\":0,\"seconds\":0,\"loss\":2}\n{\"step\":1,\"seconds\":1,\"loss\":1}\n";
        assert_eq!(read(whole).unwrap().non_finite(), None);
        for [first, second] in [["NaN", "Infinity"], ["\"-Infinity\"", "\"NaN\""]] {
            let log = read(&format!(
                "{whole}{{\"step\": 2, \"seconds\": 2.0, \"loss\": {first}, \"rate\": 0.5}}\n\
                 {{\"step\": 3, \"seconds\": 3.0, \"loss\": {second}, \"rate\": NaN}}\n\
                 {{\"step\": 4, \"seconds\": 4.0, \"loss\": 0.5, \"bytes_in_use\": null}}\n"
            ))
            .unwrap();
            let expected = NonFinite { count: 3, name: "loss".to_owned(), step: 2 };
            assert_eq!(log.non_finite(), Some(&expected), "{first}");
            let steps = |curve: &Curve| curve.points.iter().map(|point| point.step).collect::<Vec<_>>();
            assert_eq!(log.curves().iter().map(steps).collect::<Vec<_>>(), [vec![0, 1, 4], vec![2]]);
        }
        let error = read("{\"step\":0,\"seconds\":NaN}\n").unwrap_err().to_string();
        assert_eq!(error, "line 1: \"seconds\" must be a number from 0, found \"NaN\"");
        assert!(read("{\"step\":0,\"seconds\":0,\"loss\":nan}\n").is_err());
        for end in ["NaN", "Na", "-", "-Infinity"] {
            let log = read(&format!("{whole}{{\"step\":2,\"seconds\":2,\"loss\":{end}")).unwrap();
            assert_eq!((log.lines(), log.is_cut(), log.non_finite()), (2, true, None), "{end}");
        }
    }

    #[test]
    fn null_is_a_gap_and_is_not_counted() {
        let log = read(
            "{\"step\":0,\"seconds\":0,\"loss\":2,\"accuracy\":null}\n\
             {\"step\":1,\"seconds\":1,\"loss\":null,\"accuracy\":0.5}\n\
             {\"step\":2,\"seconds\":2,\"loss\":1,\"accuracy\":0.75}\n",
        )
        .unwrap();
        assert_eq!(log.non_finite(), None);
        let breaks = log.curves().iter().map(|curve| (curve.name.as_str(), &curve.breaks[..]));
        assert_eq!(breaks.collect::<Vec<_>>(), [("loss", &[1][..]), ("accuracy", &[])]);
    }

    #[test]
    fn a_curve_breaks_at_nan_and_at_missing_steps() {
        let mut text = String::new();
        for step in (0..5).chain(9..15) {
            let loss = if matches!(step, 0 | 2 | 10 | 11 | 14) { "NaN" } else { "1.5" };
            text += &format!("{{\"step\":{step},\"seconds\":{step},\"loss\":{loss},\"rate\":1}}\n");
        }
        let log = read(&text).unwrap();
        let steps = |name: &str| -> Vec<u64> {
            let curve = log.curves().iter().find(|curve| curve.name == name).unwrap();
            curve.breaks.iter().map(|&index| curve.points[index].step).collect()
        };
        // The line cannot break before the first point or after the last one.
        assert_eq!(steps("loss"), [3, 12]);
        assert_eq!(steps("rate"), [9]);
    }

    #[test]
    fn only_a_truncated_last_line_is_ignored() {
        let whole = "{\"step\":0,\"seconds\":0,\"loss\":1}\n";
        let log = read(&format!("{whole}{{\"step\":1,\"seco")).unwrap();
        assert_eq!((log.lines(), log.is_cut()), (1, true));
        let error = read(&format!("{whole}{{\"step\":1,\"seco\n{whole}")).unwrap_err();
        assert_eq!(error.to_string(), "line 2: expected a JSON object, found \"{\\\"step\\\":1,\\\"seco\"");
        assert!(read("{\"step\":1,\"seco").is_err(), "the only line");
    }

    #[test]
    fn an_invalid_log_is_an_error_with_its_line() {
        let good = "{\"step\":5,\"seconds\":2}\n";
        for (line, message) in [
            ("[1]", "line 2: expected a JSON object, found \"[1]\""),
            ("step 1", "line 2: expected a JSON object, found \"step 1\""),
            ("{\"step\":1.5,\"seconds\":3}", "line 2: \"step\" must be an integer, found 1.5"),
            ("{\"seconds\":3}", "line 2: \"step\" must be an integer, found nothing"),
            ("{\"step\":6,\"seconds\":-1}", "line 2: \"seconds\" must be a number from 0, found -1"),
            ("{\"step\":6,\"seconds\":\"1\"}", "line 2: \"seconds\" must be a number from 0, found \"1\""),
            ("{\"step\":4,\"seconds\":3}", "line 2: \"step\" decreases from 5 to 4"),
            ("{\"step\":6,\"seconds\":1.5}", "line 2: \"seconds\" decreases from 2 to 1.5"),
        ] {
            assert_eq!(read(&format!("{good}{line}\n")).unwrap_err().to_string(), message);
        }
        let nested = format!("{good}{}\n", "[".repeat(10_000));
        assert!(read(&nested).unwrap_err().to_string().starts_with("line 2: expected a JSON object"));
        assert!(read(&format!("{good}{{\"step\":6,\"seconds\":1e999}}\n")).is_err());
    }

    #[test]
    fn a_log_beyond_a_limit_is_refused() {
        let limits = TrainingLogLimits { line_bytes: 60, points: 3, idle_lines: 2, curves: 2, name_bytes: 5 };
        let refused = |text: &str| TrainingLog::read(text.as_bytes(), &limits).unwrap_err().to_string();
        let line = |more: &str| format!("{{\"step\":0,\"seconds\":0{more}}}\n");
        assert_eq!(refused(&line(",\"a\":1,\"b\":1,\"c\":1")), "line 1: more than 2 curves");
        assert_eq!(refused(&line(",\"a\":1,\"b\":1").repeat(2)), "line 2: more than 3 points");
        assert_eq!(refused(&line(",\"longer\":1")), "line 1: more than 5 bytes in a name");
        assert_eq!(refused(&" ".repeat(100)), "line 1: longer than 60 bytes");
        for idle in ["\n", &line(""), &line(",\"a\":null")] {
            let within = format!("{}{}", idle.repeat(2), line(",\"a\":1"));
            assert!(TrainingLog::read(within.as_bytes(), &limits).is_ok(), "{within}");
            assert_eq!(refused(&idle.repeat(3)), "line 3: more than 2 lines without a point");
        }
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_an_error(text in "(\\{\"step\":[0-9]{1,3},\"seconds\":[0-9.e-]{1,4}(,\"l\":([0-9.nul-]{1,4}|NaN|-?Infinity))?\\}?\n?|.{0,20}\n){0,6}") {
            crate::fuzz::training_log(text.as_bytes());
            if let Ok(log) = read(&text) {
                for curve in log.curves() {
                    prop_assert!(!curve.points.is_empty());
                    prop_assert!(curve.points.is_sorted_by_key(|point| (point.at_ns, point.step)));
                    prop_assert!(curve.points.iter().all(|point| point.value.is_finite()));
                }
            }
        }
    }
}
