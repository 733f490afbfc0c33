//! The steps of the interpreter, read from the bytes of a fuzzer or of a random number generator.

/// One step. Indices of live blocks, owners and so on are taken modulo their number, so every sequence is
/// valid.
#[derive(Clone, Debug)]
pub enum Op {
    Allocate {
        bytes: u64,
        alignment_log2: u8,
        owner: u8,
    },
    /// The request may use only memory whose free lies at least `lag` counts back.
    AllocateFreedBefore {
        bytes: u64,
        lag: u8,
    },
    Free {
        pick: usize,
    },
    Resize {
        pick: usize,
        bytes: u64,
    },
    FreeTwice {
        pick: usize,
    },
    FreeStale {
        pick: usize,
    },
    FreeForeign {
        pick: usize,
    },
    FreeMadeUp {
        pick: usize,
        twist: u8,
    },
    Retag {
        pick: usize,
        owner: u8,
    },
    LookUp {
        pick: usize,
        offset: u64,
    },
    ClearStats,
    ReleaseIdle,
    Trim {
        keep: u64,
    },
    /// Reports that all work but that of the last `lag` frees has ended.
    Advance {
        lag: u8,
    },
}

/// Sizes that recur, as in a training step.
pub const USUAL_BYTES: [u64; 4] = [256, 700, 1024, 3000];

/// Reads numbers from bytes until they run out.
#[derive(Clone, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    fn pick(&mut self) -> Option<usize> {
        self.byte().map(usize::from)
    }

    /// The sizes for a pool of some 100 KiB: mostly small, some large, a few impossible.
    fn bytes(&mut self) -> Option<u64> {
        let (kind, word) = (self.byte()?, u64::from(self.word()?));
        Some(match kind % 32 {
            0..=7 => USUAL_BYTES[word as usize % USUAL_BYTES.len()],
            8..=17 => 1 + word % 2047,
            18..=23 => 256 * (1 + word % 63),
            24..=29 => 4096 + word % 28_672,
            30 => 32_768 + word * 3,
            _ => 0,
        })
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.byte()? % 64 {
            0..=21 => {
                let (bytes, with) = (self.bytes()?, self.byte()?);
                // Most requests need only the default alignment.
                let alignment_log2 = if with < 192 { 6 } else { with % 14 };
                let owner = self.byte()?;
                Op::Allocate { bytes, alignment_log2, owner }
            }
            22..=25 => {
                let (bytes, lag) = (self.bytes()?, self.byte()?);
                Op::AllocateFreedBefore { bytes, lag: lag % 8 }
            }
            26..=46 => Op::Free { pick: self.pick()? },
            47 => Op::FreeTwice { pick: self.pick()? },
            48..=49 => Op::FreeStale { pick: self.pick()? },
            50 => Op::FreeForeign { pick: self.pick()? },
            51..=52 => Op::FreeMadeUp { pick: self.pick()?, twist: self.byte()? },
            53..=55 => Op::Retag { pick: self.pick()?, owner: self.byte()? },
            56 => Op::LookUp { pick: self.pick()?, offset: u64::from(self.word()? % 8192) },
            57 => Op::ClearStats,
            58 => Op::ReleaseIdle,
            59 => Op::Trim { keep: u64::from(self.word()?) * 2 },
            60..=61 => Op::Advance { lag: self.byte()? % 12 },
            _ => Op::Resize { pick: self.pick()?, bytes: self.bytes()? },
        })
    }
}

/// Decodes bytes to steps: every sequence of bytes is valid.
pub fn ops_from_bytes(bytes: &[u8]) -> Vec<Op> {
    let mut reader = Reader(bytes);
    std::iter::from_fn(|| reader.op()).collect()
}
