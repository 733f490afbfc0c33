//! The plainest policy: lists of pieces, searched from end to end. It follows the rules of other policies without their
//! data structures.

use bfc_core::Span;

/// A free piece in which a block fits.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub piece: Span,
    /// Where the block would start.
    pub start: u64,
    /// Where the block that was placed last ended; 0 for the first block.
    pub last_end: u64,
}

/// The differences between the policies.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Requests are multiples of this.
    pub step: u64,
    /// Added to requests before they are rounded up.
    pub overhead: u64,
    /// The policy does not split off a remainder of at most this many bytes.
    pub kept_rest: u64,
    /// Larger requests get their own regions.
    pub max_chunk: u64,
    /// Whether the policy cuts blocks from the upper end.
    pub upper_end: bool,
    /// The policy takes the candidate with the smallest key, and the lowest one of several.
    pub key: fn(&Candidate) -> u64,
}

impl Rules {
    /// Best fit in steps of 256 bytes. Policies state their differences: `Rules { upper_end: true, ..Rules::PLAIN }`.
    pub const PLAIN: Self = Self {
        step: 256,
        overhead: 0,
        kept_rest: 0,
        max_chunk: u64::MAX,
        upper_end: false,
        key: |candidate| candidate.piece.bytes,
    };

    pub fn rounded(&self, bytes: u64) -> u64 {
        (bytes + self.overhead).next_multiple_of(self.step)
    }
}

/// A region, or a piece of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainPiece {
    pub span: Span,
    pub live: bool,
}

#[derive(Clone, Debug)]
pub struct PlainRegion {
    pub span: Span,
    /// Reserved for a huge request: the policy releases it once idle.
    pub own: bool,
    pub pieces: Vec<PlainPiece>,
}

impl PlainRegion {
    pub fn is_idle(&self) -> bool {
        self.pieces.len() == 1 && !self.pieces[0].live
    }
}

#[derive(Clone, Debug)]
pub struct Plain {
    pub rules: Rules,
    pub regions: Vec<PlainRegion>,
    last_end: u64,
}

impl Plain {
    pub fn new(rules: Rules) -> Self {
        Self { rules, regions: Vec::new(), last_end: 0 }
    }

    pub fn add(&mut self, span: Span) {
        let pieces = vec![PlainPiece { span, live: false }];
        self.regions.push(PlainRegion { span, own: false, pieces });
        self.regions.sort_by_key(|region| region.span.address);
    }

    pub fn remove(&mut self, span: Span) {
        let index = self.regions.iter().position(|region| region.span == span).expect("a known region");
        assert!(self.regions[index].is_idle(), "{span:x?} was in use");
        self.regions.remove(index);
    }

    /// Where the policy must place a block.
    pub fn place(&mut self, bytes: u64, alignment: u64) -> Option<Span> {
        let Self { rules, last_end, .. } = *self;
        let rounded = rules.rounded(bytes);
        let huge = rounded > rules.max_chunk;
        let fits = |piece: &PlainPiece| {
            let end = piece.span.address + piece.span.bytes;
            let start = if rules.upper_end {
                end.checked_sub(rounded)? / alignment * alignment
            } else {
                piece.span.address.next_multiple_of(alignment)
            };
            (!piece.live && start >= piece.span.address && start + rounded <= end).then_some(start)
        };
        let candidates = self.regions.iter().enumerate().filter(|(_, region)| !huge || region.is_idle());
        let pieces = candidates.flat_map(|(r, region)| {
            region.pieces.iter().enumerate().filter_map(move |(p, piece)| {
                let start = fits(piece)?;
                let key = (rules.key)(&Candidate { piece: piece.span, start, last_end });
                Some(((key, piece.span.address), r, p, start))
            })
        });
        let (_, r, p, start) = pieces.min_by_key(|(order, ..)| *order)?;

        let region = &mut self.regions[r];
        let Span { address, bytes } = region.pieces[p].span;
        let rest = address + bytes - start - rounded;
        let kept = if huge || rest <= rules.kept_rest { rest } else { 0 };
        let block = Span { address: start, bytes: rounded + kept };
        let before = PlainPiece { span: Span { address, bytes: start - address }, live: false };
        let behind = Span { address: start + block.bytes, bytes: rest - kept };
        let parts =
            [before, PlainPiece { span: block, live: true }, PlainPiece { span: behind, live: false }];
        region.pieces.splice(p..=p, parts.into_iter().filter(|part| part.span.bytes > 0));
        region.own |= huge;
        self.last_end = block.address + block.bytes;
        Some(block)
    }

    pub fn free(&mut self, address: u64) {
        let holds = |region: &&mut PlainRegion| {
            (region.span.address..region.span.address + region.span.bytes).contains(&address)
        };
        let region = self.regions.iter_mut().find(holds).expect("the region of a live block");
        let mut pieces: Vec<PlainPiece> = Vec::new();
        for mut piece in region.pieces.drain(..) {
            piece.live &= piece.span.address != address;
            match pieces.last_mut() {
                Some(last) if !last.live && !piece.live => last.span.bytes += piece.span.bytes,
                _ => pieces.push(piece),
            }
        }
        region.pieces = pieces;
    }

    pub fn pieces(&self) -> impl Iterator<Item = (usize, PlainPiece)> + '_ {
        let numbered = self.regions.iter().enumerate();
        numbered.flat_map(|(index, region)| region.pieces.iter().map(move |piece| (index, *piece)))
    }

    pub fn bytes(&self, live: bool) -> u64 {
        self.pieces().filter(|(_, piece)| piece.live == live).map(|(_, piece)| piece.span.bytes).sum()
    }
}
