//! The memory during annotations of `record_function`.
//!
//! Annotations nest. Those of one place whose names differ only in a number, such as `ProfilerStep#7`, share a row.

use std::collections::HashMap;

use highwater_tracking::{EventKind, Recording};
use serde::Serialize;

use super::levels::Meter;
use crate::trace::snapshot::Annotation;

/// The most annotations that are followed at a time. Deeper ones are left out.
const DEEPEST: usize = 32;

/// The most rows. Annotations of further names are left out.
const MOST_ROWS: usize = 1000;

/// Annotations of one name inside of one row. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AnnotationRow {
    /// The name. A number at its end is a star if the row has several: `ProfilerStep#*`.
    pub name: String,
    /// The number of annotations around it.
    pub depth: u64,
    /// How often it occurred.
    pub times: u64,
    /// The most bytes that one occurrence held at a time, of the blocks that were allocated during it.
    pub high_water_bytes: u64,
    /// The most bytes of all live blocks during it.
    pub peak_allocated_bytes: u64,
    /// The most reserved bytes during it.
    pub peak_reserved_bytes: u64,
    /// The name of the occurrence with the highest [`peak_allocated_bytes`](Self::peak_allocated_bytes).
    pub highest: String,
    /// The time of all occurrences in nanoseconds.
    pub time_ns: u64,
}

/// A row with the rows inside it.
#[derive(Debug, Default)]
struct Node {
    row: AnnotationRow,
    inside: Vec<usize>,
}

/// An annotation that is not over.
#[derive(Debug)]
struct Open {
    node: usize,
    begin: u32,
    end: u32,
    name: usize,
    held: u64,
    high_water: u64,
    allocated: u64,
    reserved: u64,
}

/// Returns a row for each name and place, each before the rows inside of it.
pub(super) fn annotation_rows(recording: &Recording, annotations: &[Annotation]) -> Vec<AnnotationRow> {
    if annotations.is_empty() {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..annotations.len()).collect();
    order.sort_by_key(|&index| (annotations[index].begin, std::cmp::Reverse(annotations[index].end), index));
    let mut sweep = Sweep {
        recording,
        annotations,
        nodes: vec![Node::default()],
        known: HashMap::new(),
        open: Vec::new(),
    };
    let pending = HashMap::new();
    let mut meter = Meter::new(recording, &pending);
    let mut next = order.into_iter().peekable();
    for index in 0..recording.events().len() as u32 {
        let before = meter.level();
        sweep.close(index);
        while let Some(opened) = next.next_if(|&opened| annotations[opened].begin <= index) {
            sweep.open(opened, before.allocated_bytes, before.reserved_bytes);
        }
        // Some annotations have no events.
        sweep.close(index);
        let level = meter.take(index);
        if !sweep.open.is_empty() {
            sweep.event(index, level.allocated_bytes, level.reserved_bytes);
        }
    }
    // Annotations without events of their own have the level at their begin.
    let end = meter.level();
    for opened in next {
        sweep.close(annotations[opened].begin);
        sweep.open(opened, end.allocated_bytes, end.reserved_bytes);
    }
    sweep.close(u32::MAX);
    sweep.rows()
}

struct Sweep<'a> {
    recording: &'a Recording,
    annotations: &'a [Annotation],
    /// The first is the root.
    nodes: Vec<Node>,
    known: HashMap<(usize, &'a str), usize>,
    open: Vec<Open>,
}

impl<'a> Sweep<'a> {
    /// Opens an annotation at a level.
    fn open(&mut self, number: usize, allocated: u64, reserved: u64) {
        if self.open.len() >= DEEPEST {
            return;
        }
        let annotations = self.annotations;
        let annotation = &annotations[number];
        // Annotations of several threads may overlap without being nested.
        let around = self.open.iter().rev().find(|open| open.end >= annotation.end);
        let parent = around.map_or(0, |open| open.node);
        let key = (parent, base_name(&annotation.name));
        let node = match self.known.get(&key) {
            Some(&node) => node,
            None if self.nodes.len() > MOST_ROWS => return,
            None => {
                let depth = if parent == 0 { 0 } else { self.nodes[parent].row.depth + 1 };
                let row = AnnotationRow { name: annotation.name.clone(), depth, ..AnnotationRow::default() };
                self.nodes.push(Node { row, inside: Vec::new() });
                let node = self.nodes.len() - 1;
                self.nodes[parent].inside.push(node);
                self.known.insert(key, node);
                node
            }
        };
        let (begin, end) = (annotation.begin, annotation.end.max(annotation.begin));
        let open = Open { node, begin, end, name: number, held: 0, high_water: 0, allocated, reserved };
        self.open.push(open);
    }

    /// Closes the annotations that end before the event.
    fn close(&mut self, index: u32) {
        let is_over = |open: &Open| open.end <= index || index == u32::MAX;
        if !self.open.iter().any(is_over) {
            return;
        }
        let (annotations, nodes, recording) = (self.annotations, &mut self.nodes, self.recording);
        self.open.retain(|open| {
            if !is_over(open) {
                return true;
            }
            let (row, name) = (&mut nodes[open.node].row, &annotations[open.name].name);
            row.times += 1;
            if row.name != *name {
                row.name = format!("{}*", base_name(name));
            }
            if row.times == 1 || open.allocated > row.peak_allocated_bytes {
                row.highest.clone_from(name);
            }
            row.high_water_bytes = row.high_water_bytes.max(open.high_water);
            row.peak_allocated_bytes = row.peak_allocated_bytes.max(open.allocated);
            row.peak_reserved_bytes = row.peak_reserved_bytes.max(open.reserved);
            let time = annotation_time(recording, &annotations[open.name]);
            row.time_ns = row.time_ns.saturating_add(time);
            false
        });
    }

    /// Counts an event for all open annotations.
    fn event(&mut self, index: u32, allocated: u64, reserved: u64) {
        let change = match self.recording.events()[index as usize].kind {
            EventKind::Alloc(number) => Some((self.recording.block(number), true)),
            EventKind::Free(number) => Some((self.recording.block(number), false)),
            EventKind::Region(_) => None,
            _ => return,
        };
        for open in &mut self.open {
            match change {
                Some((block, true)) => open.held = open.held.saturating_add(block.granted),
                Some((block, false)) if block.born >= open.begin => {
                    open.held = open.held.saturating_sub(block.granted);
                }
                _ => {}
            }
            open.high_water = open.high_water.max(open.held);
            open.allocated = open.allocated.max(allocated);
            open.reserved = open.reserved.max(reserved);
        }
    }

    /// The rows, each before those inside of it.
    fn rows(self) -> Vec<AnnotationRow> {
        let mut rows = Vec::new();
        let mut next: Vec<usize> = self.nodes[0].inside.iter().rev().copied().collect();
        while let Some(node) = next.pop() {
            let Node { row, inside } = &self.nodes[node];
            rows.push(row.clone());
            next.extend(inside.iter().rev());
        }
        rows
    }
}

fn annotation_time(recording: &Recording, annotation: &Annotation) -> u64 {
    recording.time_of(annotation.end).saturating_sub(recording.time_of(annotation.begin))
}

/// The name up to the last `#` if only digits follow.
fn base_name(name: &str) -> &str {
    match name.rfind('#') {
        Some(mark) if name[mark + 1..].bytes().all(|byte| byte.is_ascii_digit()) => &name[..=mark],
        _ => name,
    }
}
