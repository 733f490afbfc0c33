//! The opcodes of pickles, with their names in Python's `pickletools`.

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        $(
            #[doc = concat!("The opcode `", stringify!($name), "`.")]
            pub const $name: u8 = $code;
        )*

        /// Returns the name of an opcode.
        pub(super) const fn name(code: u8) -> &'static str {
            match code {
                $($name => stringify!($name),)*
                0x82..=0x84 => "EXT",
                b'P' => "PERSID",
                0x97 => "NEXT_BUFFER",
                0x98 => "READONLY_BUFFER",
                b'I' | b'L' | b'F' | b'S' | b'V' | b'g' | b'p' => "protocol 0",
                _ => "unknown",
            }
        }
    };
}

opcodes! {
    PROTO = 0x80,
    FRAME = 0x95,
    STOP = b'.',
    MARK = b'(',
    POP = b'0',
    POP_MARK = b'1',
    DUP = b'2',
    NONE = b'N',
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    BINFLOAT = b'G',
    BININT1 = b'K',
    BININT2 = b'M',
    BININT = b'J',
    LONG1 = 0x8a,
    LONG4 = 0x8b,
    SHORT_BINSTRING = b'U',
    BINSTRING = b'T',
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE = b'X',
    BINUNICODE8 = 0x8d,
    SHORT_BINBYTES = b'C',
    BINBYTES = b'B',
    BINBYTES8 = 0x8e,
    BYTEARRAY8 = 0x96,
    EMPTY_LIST = b']',
    EMPTY_TUPLE = b')',
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    LIST = b'l',
    TUPLE = b't',
    APPEND = b'a',
    APPENDS = b'e',
    EMPTY_DICT = b'}',
    DICT = b'd',
    SETITEM = b's',
    SETITEMS = b'u',
    BINGET = b'h',
    LONG_BINGET = b'j',
    BINPUT = b'q',
    LONG_BINPUT = b'r',
    MEMOIZE = 0x94,
    GLOBAL = b'c',
    STACK_GLOBAL = 0x93,
    REDUCE = b'R',
    BUILD = b'b',
    BINPERSID = b'Q',
    NEWOBJ = 0x81,
    NEWOBJ_EX = 0x92,
    OBJ = b'o',
    INST = b'i',
    EMPTY_SET = 0x8f,
    ADDITEMS = 0x90,
    FROZENSET = 0x91,
}
