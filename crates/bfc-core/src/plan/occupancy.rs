//! The occupied space by section: a segment tree whose nodes hold merged spans of space.
//!
//! The sections of a block are split into whole nodes of the tree. Each such node records the block's span as covering;
//! each node above records it as touching. A block that shares a section with a range then covers a node on the path
//! from the range's first or last section to the root, or covers or touches a node inside the range. A placement
//! therefore reads a few lists per level of the tree, for any number of blocks. Touching spans are merged, so lists
//! stay short in dense space.

/// Spans of space, ascending and disjoint.
#[derive(Clone, Debug, Default)]
struct Spans(Vec<(u64, u64)>);

impl Spans {
    fn add(&mut self, start: u64, end: u64) {
        // Merges all spans that overlap or touch.
        let first = self.0.partition_point(|span| span.1 < start);
        let last = first + self.0[first..].partition_point(|span| span.0 <= end);
        match self.0.get(first..last) {
            Some([lowest, .., highest]) => {
                let joined = (lowest.0.min(start), highest.1.max(end));
                self.0[first] = joined;
                self.0.drain(first + 1..last);
            }
            Some([only]) => self.0[first] = (only.0.min(start), only.1.max(end)),
            _ => self.0.insert(first, (start, end)),
        }
    }
}

/// The space that the placed blocks occupy.
#[derive(Debug)]
pub(super) struct Occupancy {
    /// Leaves of the tree, a power of two.
    leaves: usize,
    /// Per node: blocks that live in all sections of the node.
    covering: Vec<Spans>,
    /// Per node: blocks that live in some sections of the node, and cover nodes below it.
    touching: Vec<Spans>,
    /// Nodes with any span.
    used: Vec<u32>,
    /// Scratch: the lists that matter to one placement, each with its position.
    lists: Vec<List>,
    /// Steps of all placements so far: the measure of effort.
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct List {
    node: u32,
    touching: bool,
    next: u32,
}

/// Returns the first span from `from` on that ends above `offset`, by an exponential search.
fn first_ending_above(spans: &[(u64, u64)], from: usize, offset: u64) -> usize {
    let rest = &spans[from..];
    let mut reach = 1;
    while rest.get(reach - 1).is_some_and(|span| span.1 <= offset) {
        reach *= 2;
    }
    let (low, high) = (reach / 2, reach.min(rest.len()));
    from + low + rest[low..high].partition_point(|span| span.1 <= offset)
}

impl Occupancy {
    pub(super) fn new(sections: u32) -> Self {
        let leaves = (sections.max(1) as usize).next_power_of_two();
        let nodes = vec![Spans::default(); 2 * leaves];
        Self {
            leaves,
            covering: nodes.clone(),
            touching: nodes,
            used: Vec::new(),
            lists: Vec::new(),
            steps: 0,
        }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        for &node in &self.used {
            self.covering[node as usize].0.clear();
            self.touching[node as usize].0.clear();
        }
        self.used.clear();
    }

    /// Returns the lowest offset from `least` on at which `size` bytes are free in all sections of `span`.
    pub(super) fn lowest(&mut self, span: (u32, u32), least: u64, size: u64) -> u64 {
        self.gather(span);
        let mut offset = least;
        // Each blocking list moves the offset up. The search ends after a round without a move.
        let mut agreed = 0;
        let mut index = 0;
        while agreed < self.lists.len() {
            let list = &mut self.lists[index];
            let spans = if list.touching { &self.touching } else { &self.covering };
            let spans = &spans[list.node as usize].0;
            list.next = first_ending_above(spans, list.next as usize, offset) as u32;
            self.steps += 1;
            // The spans of a list are disjoint, so it may move the offset several times in a row.
            let before = offset;
            while let Some(span) =
                spans.get(list.next as usize).filter(|span| span.0 < offset.saturating_add(size))
            {
                offset = span.1;
                list.next += 1;
                self.steps += 1;
            }
            agreed = if offset == before { agreed + 1 } else { 1 };
            index += 1;
            if index == self.lists.len() {
                index = 0;
            }
        }
        offset
    }

    /// Occupies the space from `offset` to `end` in all sections of `span`.
    pub(super) fn take(&mut self, span: (u32, u32), offset: u64, end: u64) {
        let (mut left, mut right) = (span.0 as usize + self.leaves, span.1 as usize + self.leaves);
        let (first, last) = (left, right - 1);
        while left < right {
            if left & 1 == 1 {
                self.cover(left, offset, end);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.cover(right, offset, end);
            }
            left /= 2;
            right /= 2;
        }
        // Every node above a covered one lies on the path from the first or the last section to the root.
        self.touch_above(first, span, offset, end);
        self.touch_above(last, span, offset, end);
    }

    fn cover(&mut self, node: usize, offset: u64, end: u64) {
        self.note_use(node);
        self.covering[node].add(offset, end);
    }

    fn touch_above(&mut self, leaf: usize, span: (u32, u32), offset: u64, end: u64) {
        let (mut node, mut width) = (leaf / 2, 2);
        while node > 0 {
            let first = node * width - self.leaves;
            let covered = first >= span.0 as usize && first + width <= span.1 as usize;
            if !covered {
                self.note_use(node);
                self.touching[node].add(offset, end);
            }
            node /= 2;
            width *= 2;
        }
    }

    fn note_use(&mut self, node: usize) {
        if self.covering[node].0.is_empty() && self.touching[node].0.is_empty() {
            self.used.push(node as u32);
        }
    }

    fn gather(&mut self, span: (u32, u32)) {
        self.lists.clear();
        let (mut left, mut right) = (span.0 as usize + self.leaves, span.1 as usize + self.leaves);
        let (mut first, mut last) = (left, right - 1);
        while left < right {
            // Nodes inside the range: their touching spans. Their covering spans are found on the two paths up, or
            // here.
            if left & 1 == 1 {
                self.list(left, true);
                self.list(left, false);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.list(right, true);
                self.list(right, false);
            }
            left /= 2;
            right /= 2;
        }
        while first > 0 {
            self.list(first, false);
            if last != first {
                self.list(last, false);
            }
            first /= 2;
            last /= 2;
        }
    }

    fn list(&mut self, node: usize, touching: bool) {
        let spans = if touching { &self.touching } else { &self.covering };
        if !spans[node].0.is_empty() {
            self.lists.push(List { node: node as u32, touching, next: 0 });
        }
    }
}
