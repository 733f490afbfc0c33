//! The opcodes of pickles.

/// An opcode that makes plain data. `bytes` is the number of argument bytes. `length` is the number of bytes of a
/// length field before the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Proto,
    Frame,
    Stop,
    Mark,
    Pop,
    PopMark,
    Dup,
    None,
    Bool(bool),
    Float,
    Int { bytes: usize },
    Long { length: usize },
    Text { length: usize },
    Bytes { length: usize },
    EmptyList,
    Tuple { items: usize },
    ListOfMarked,
    TupleOfMarked,
    Append,
    Appends,
    EmptyDict,
    DictOfMarked,
    SetItem,
    SetItems,
    Recall { bytes: usize },
    Keep { bytes: usize },
    KeepNext,
    Global,
    StackGlobal,
    Reduce,
    Build,
    PersistentId,
    NewObject,
    NewObjectWithKeywords,
    ObjectOfMarked,
    Instance,
    EmptySet,
    AddItems,
    FrozenSet,
}

impl Opcode {
    pub(super) const fn of(code: u8) -> Option<Self> {
        Some(match code {
            0x80 => Self::Proto,
            0x95 => Self::Frame,
            b'.' => Self::Stop,
            b'(' => Self::Mark,
            b'0' => Self::Pop,
            b'1' => Self::PopMark,
            b'2' => Self::Dup,
            b'N' => Self::None,
            0x88 => Self::Bool(true),
            0x89 => Self::Bool(false),
            b'G' => Self::Float,
            b'K' => Self::Int { bytes: 1 },
            b'M' => Self::Int { bytes: 2 },
            b'J' => Self::Int { bytes: 4 },
            0x8a => Self::Long { length: 1 },
            0x8b => Self::Long { length: 4 },
            b'U' | 0x8c => Self::Text { length: 1 },
            b'T' | b'X' => Self::Text { length: 4 },
            0x8d => Self::Text { length: 8 },
            b'C' => Self::Bytes { length: 1 },
            b'B' => Self::Bytes { length: 4 },
            0x8e | 0x96 => Self::Bytes { length: 8 },
            b']' => Self::EmptyList,
            b')' => Self::Tuple { items: 0 },
            0x85 => Self::Tuple { items: 1 },
            0x86 => Self::Tuple { items: 2 },
            0x87 => Self::Tuple { items: 3 },
            b'l' => Self::ListOfMarked,
            b't' => Self::TupleOfMarked,
            b'a' => Self::Append,
            b'e' => Self::Appends,
            b'}' => Self::EmptyDict,
            b'd' => Self::DictOfMarked,
            b's' => Self::SetItem,
            b'u' => Self::SetItems,
            b'h' => Self::Recall { bytes: 1 },
            b'j' => Self::Recall { bytes: 4 },
            b'q' => Self::Keep { bytes: 1 },
            b'r' => Self::Keep { bytes: 4 },
            0x94 => Self::KeepNext,
            _ => return None,
        })
    }
}

impl Opcode {
    /// Returns whether the opcode makes or changes something other than plain data: a call, an object, a set.
    pub(super) const fn of_call(code: u8) -> Option<Self> {
        Some(match code {
            b'c' => Self::Global,
            0x93 => Self::StackGlobal,
            b'R' => Self::Reduce,
            b'b' => Self::Build,
            b'Q' => Self::PersistentId,
            0x81 => Self::NewObject,
            0x92 => Self::NewObjectWithKeywords,
            b'o' => Self::ObjectOfMarked,
            b'i' => Self::Instance,
            0x8f => Self::EmptySet,
            0x90 => Self::AddItems,
            0x91 => Self::FrozenSet,
            _ => return None,
        })
    }
}

/// Returns the name in `pickletools` of an opcode outside of [`Opcode`].
pub(super) const fn name_of_refused(code: u8) -> &'static str {
    match code {
        b'c' => "GLOBAL",
        0x93 => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        b'P' | b'Q' => "PERSID",
        0x82..=0x84 => "EXT",
        0x8f => "EMPTY_SET",
        0x90 => "ADDITEMS",
        0x91 => "FROZENSET",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        b'I' | b'L' | b'F' | b'S' | b'V' | b'g' | b'p' => "protocol 0",
        _ => "unknown",
    }
}
