//! Recordings of files of any format: reports, comparisons and exports of the runs of other tools.

use std::collections::BTreeMap;
use std::io::BufRead;

use bfc_core::Category;
use highwater_files::lean::HeldMemory;
use highwater_tracking::{Composer, NewBlock, Phase, Recording};

use super::formats::Reader;
use super::profile::{facts, recording_limits};
use super::read::{self, Opened};
use super::snapshot::Snapshot;
use super::{ReadOptions, Trace, TraceError, TraceEvent, TraceLimits, TracePlace, TraceProblem};

/// How labels name owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Labels {
    form: LabelForm,
    /// The phase of labels that name none. It is the forward phase if other labels name theirs, in the formats of
    /// Highwater. Other tools may choose any names.
    unnamed: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelForm {
    /// The path of an op in its modules: `net.fc1.matmul:backward`.
    Paths,
    /// The name of an op outside of modules.
    Names,
}

impl Labels {
    fn of(trace: &Trace, form: LabelForm) -> Self {
        let states_phases = form == LabelForm::Paths || trace.has_phases;
        Self { form, unnamed: phase_of_unnamed(states_phases, trace.labels()) }
    }
}

/// Returns the phase of labels that name none, in a file whose labels may state phases.
pub(super) fn phase_of_unnamed(states_phases: bool, labels: &[String]) -> Phase {
    let has_phases = states_phases && labels.iter().any(|label| Phase::of_suffix(label).is_some());
    if has_phases { Phase::Forward } else { Phase::Unknown }
}

/// Reads a recording, a trace or a heap profile of another tool, plain or compressed by gzip. Detects the format from
/// the contents, as [`Trace::read`] does.
///
/// Blocks of other tools are charged to the information that their file has: the call stack, the line of Python, the
/// thread and the stream, or the label. Frames of libraries are left out of stacks that have others. PyTorch
/// [snapshots](super::Snapshot) have addresses, granted bytes, regions and streams. In other formats, requested and
/// granted bytes are equal, and addresses are placeholders. Times are 0 in formats without times, and phases are
/// [unknown](Phase::Unknown) in files without phases.
///
/// ```
/// use highwater_traces::{ReadOptions, read_recording};
/// use highwater_tracking::Report;
/// let memray = "allocator,num_allocations,size,tid,thread_name,stack_trace\n\
///     MALLOC,2,3000,1,main,load;train.py;7|main;train.py;20\n";
/// let run = read_recording(memray.as_bytes(), &ReadOptions::default())?;
/// assert_eq!(run.peak().unwrap().bytes, 3000);
/// assert_eq!(Report::from_recording(&run).places[0].path(), "main.load train.py:7");
/// # Ok::<(), highwater_traces::TraceError>(())
/// ```
///
/// # Errors
/// A [`TraceError`] for the first place where the file is unreadable, malformed, inconsistent or beyond a limit.
pub fn read_recording(reader: impl BufRead, options: &ReadOptions) -> Result<Recording, TraceError> {
    read::open(reader, options, |opened| recording_of(opened, options))
}

/// Reads a recording from a decompressed file.
pub(super) fn recording_of(opened: Opened<'_>, options: &ReadOptions) -> Result<Recording, TraceError> {
    let Opened { format, reader, bytes } = opened;
    let limits = &options.limits;
    let read = match format.reader {
        Reader::Profile(read) => return read(reader, limits, 8).map(|(recording, _)| recording),
        Reader::Snapshot(read) => return read(reader, options, 8).map(Snapshot::into_recording),
        Reader::Trace(read) => read,
    };
    let trace = read(reader, options)?;
    let mut memory = HeldMemory::new(limits.held_bytes);
    memory.note_input(bytes.get());
    let labels = if format.has_paths { LabelForm::Paths } else { LabelForm::Names };
    let held = memory.charge(trace.held_bytes()).map_err(TraceProblem::from);
    held.and_then(|()| compose(&trace, format.name, labels, limits, memory))
        .map_err(|problem| TracePlace::Recording.of(problem))
}

impl Trace {
    /// Converts the trace to a recording. Labels are paths of ops in their modules, such as `net.fc1.matmul:backward`.
    /// Labels without a phase are those of the forward phase if others name the backward phase or the optimizer, and
    /// otherwise of an [unknown](Phase::Unknown) phase.
    /// Comments of the form `mark: text` become marks. Parts of blocks that a trace lends count as occupied.
    ///
    /// ```
    /// use highwater_traces::{Trace, TraceLimits};
    /// use highwater_tracking::Report;
    /// let text = "a 0 100 net.fc1.matmul\na 1 50 net.relu\nf 0\nf 1\n";
    /// let trace = Trace::parse(text.as_bytes(), &TraceLimits::default())?;
    /// let report = Report::from_recording(&trace.to_recording()?);
    /// assert_eq!(report.peak.unwrap().bytes, 150);
    /// assert_eq!(report.scopes[1].scope, "net");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A [`TraceProblem`] for a trace beyond the default [`RecordingLimits`](highwater_tracking::RecordingLimits), except
    /// that on memory.
    pub fn to_recording(&self) -> Result<Recording, TraceProblem> {
        // The trace is already in memory.
        let limits = TraceLimits { held_bytes: u64::MAX, ..TraceLimits::default() };
        let memory = HeldMemory::new(limits.held_bytes);
        compose(self, "an allocation trace", LabelForm::Paths, &limits, memory)
    }
}

fn compose(
    trace: &Trace,
    name: &str,
    form: LabelForm,
    limits: &TraceLimits,
    memory: HeldMemory,
) -> Result<Recording, TraceProblem> {
    let labels = Labels::of(trace, form);
    let mut composer = Composer::new(recording_limits(limits), memory);
    composer.select_pool(name, "unknown")?;
    let mut owners: BTreeMap<u32, (u32, Category)> = BTreeMap::new();
    let mut marks = trace.marks().peekable();
    for (position, event) in trace.events().iter().enumerate() {
        composer.at(trace.time_ns(position).unwrap_or(0));
        while let Some((_, mark)) = marks.next_if(|(before, _)| *before <= position) {
            composer.mark(mark)?;
        }
        match *event {
            TraceEvent::Alloc { bytes, label, .. } => {
                let (owner, category) = match owners.get(&label) {
                    Some(&known) => known,
                    None => {
                        let text = trace.label(label);
                        let found = (owner_of(&mut composer, text, labels)?, category_of(text));
                        owners.insert(label, found);
                        found
                    }
                };
                // Both count blocks from 0 in the order of their allocation.
                composer.alloc(NewBlock { bytes, owner, category })?;
            }
            TraceEvent::Free { block } => composer.free(block.into())?,
            TraceEvent::Occupy { .. } => {}
        }
    }
    for (_, mark) in marks {
        composer.mark(mark)?;
    }
    let mut facts = facts(trace.header("program").unwrap_or(name), name);
    facts.more.extend(trace.skipped().iter().map(|what| ("without".to_owned(), what.clone())));
    Ok(composer.finish(facts)?.0)
}

/// Returns the category that a label names, as in PyTorch's timelines.
fn category_of(label: &str) -> Category {
    let name = |category: &Category| category.name().split('_').eq(label.split(' '));
    Category::ALL.into_iter().find(name).unwrap_or_default()
}

/// Returns the owner that a label names.
fn owner_of(composer: &mut Composer, label: &str, labels: Labels) -> Result<u32, TraceProblem> {
    let (modules, op) = match label.rsplit_once('.') {
        Some((modules, op)) if labels.form == LabelForm::Paths => (Some(modules), op),
        _ => (None, label),
    };
    let mut parent = 0;
    for module in modules.into_iter().flat_map(|modules| modules.split('.')).take(MOST_MODULES) {
        let module = composer.name(module)?;
        parent = composer.owner(parent, module, None)?;
    }
    let name = composer.name(op)?;
    Ok(composer.owner(parent, name, Some(Phase::of_suffix(op).unwrap_or(labels.unnamed)))?)
}

/// The most modules of a path. Further ones are omitted.
const MOST_MODULES: usize = 64;
