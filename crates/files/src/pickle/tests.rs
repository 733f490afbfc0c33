use super::*;
use bfc_core::KIB;

/// Reads a pickle of protocol 4 with these instructions.
fn read_with(instructions: &[u8], held_bytes: u64) -> Result<(Heap, Value), PickleError> {
    read(&[b"\x80\x04", instructions].concat()[..], HeldMemory::new(held_bytes))
}

fn value(instructions: &[u8]) -> (Heap, Value) {
    read_with(instructions, 64 * KIB).unwrap()
}

fn refusal(instructions: &[u8]) -> String {
    read_with(instructions, 64 * KIB).unwrap_err().to_string()
}

#[test]
fn pickled_integers_of_every_length_are_read() {
    let cases: &[(&[u8], Value)] = &[
        (b"K\xff.", Value::Natural(255)),
        (b"M\x01\x02.", Value::Natural(0x201)),
        (b"J\xff\xff\xff\x7f.", Value::Natural(0x7fff_ffff)),
        (b"J\xff\xff\xff\xff.", Value::Integer),
        (b"\x8a\x00.", Value::Natural(0)),
        (b"\x8a\x06\x00\x00\x00\x00\x00\x7f.", Value::Natural(0x7f00_0000_0000)),
        (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.", Value::Natural(u64::MAX)),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", Value::Integer),
        (b"\x8a\x01\xff.", Value::Integer),
        (b"\x8b\x02\x00\x00\x00\x34\x12.", Value::Natural(0x1234)),
        (b"G\x3f\xe0\x00\x00\x00\x00\x00\x00.", Value::Float(0.5)),
        (b"\x88.", Value::Bool(true)),
    ];
    for &(instructions, expected) in cases {
        assert_eq!(value(instructions).1, expected, "{instructions:?}");
    }
}

#[test]
fn texts_are_read_from_every_form_and_bytes_are_passed_over() {
    for instructions in [
        &b"\x8c\x02ab."[..],
        b"U\x02ab.",
        b"X\x02\x00\x00\x00ab.",
        b"T\x02\x00\x00\x00ab.",
        b"\x8d\x02\x00\x00\x00\x00\x00\x00\x00ab.",
        b"C\x01x0\x8c\x02ab.",
    ] {
        let (heap, text) = value(instructions);
        assert_eq!(heap.as_text(text), Some("ab"), "{instructions:?}");
    }
    let (heap, text) = value(b"\x8c\x03\xed\xa0\x80.");
    assert!(heap.as_text(text).unwrap().contains('\u{fffd}'), "half a surrogate pair is no letter");
}

#[test]
fn lists_tuples_and_dictionaries_hold_what_was_put_into_them() {
    let numbers = |instructions: &[u8]| {
        let (heap, list) = value(instructions);
        heap.as_list(list).unwrap().to_vec()
    };
    let both = [Value::Natural(1), Value::Natural(2)];
    for instructions in
        [&b"]K\x01aK\x02a."[..], b"](K\x01K\x02e.", b"K\x01K\x02\x86.", b"(K\x01K\x02t.", b"(K\x01K\x02l."]
    {
        assert_eq!(numbers(instructions), both, "{instructions:?}");
    }
    assert_eq!(numbers(b")."), []);
    for instructions in
        [&b"}\x8c\x01aK\x01s\x8c\x01aK\x02s."[..], b"}(\x8c\x01aK\x01\x8c\x01aK\x02u.", b"(\x8c\x01aK\x02d."]
    {
        let (heap, dict) = value(instructions);
        assert_eq!(heap.get(dict, "a"), Some(Value::Natural(2)), "the last value counts: {instructions:?}");
        assert_eq!(heap.get(dict, "b"), None);
    }
}

#[test]
fn recalled_objects_stay_shared() {
    // A list that holds itself, twice: no more than one list, and no endless walk when it is dropped.
    let (heap, list) = value(b"]q\x07h\x07aj\x07\x00\x00\x00a.");
    assert_eq!(heap.as_list(list).unwrap(), [list, list]);
    // Numbers given in turn.
    let (heap, list) = value(b"]\x94\x8c\x01x\x94ah\x01a.");
    let items = heap.as_list(list).unwrap();
    assert_eq!((items[0], heap.as_text(items[1])), (items[1], Some("x")));
    assert_eq!(refusal(b"h\x01."), "byte 2: no object is stored under number 1");
}

#[test]
fn opcodes_beyond_plain_data_are_errors_with_their_name() {
    assert_eq!(
        refusal(b"cos\nsystem\n."),
        "byte 2: pickle opcode 0x63 (GLOBAL) is not supported: only plain data is"
    );
    for (code, name) in
        [(0x93, "STACK_GLOBAL"), (b'R', "REDUCE"), (b'b', "BUILD"), (0x81, "NEWOBJ"), (0x8f, "EMPTY_SET")]
    {
        assert!(refusal(&[b'N', code]).contains(name));
    }
    assert!(refusal(b"\xff").contains("0xff (unknown)"));
    assert_eq!(refusal(b"\x80\x06"), "byte 2: pickle protocol 6, expected 2 to 5");
    assert_eq!(refusal(b"\x80\x01"), "byte 2: pickle protocol 1, expected 2 to 5");
}

#[test]
fn instructions_that_find_too_little_on_the_stack_are_refused() {
    let cases: &[(&[u8], &str)] = &[
        (b".", "byte 2: STOP needs a value on the stack"),
        (b"0", "byte 2: POP needs a mark on the stack"),
        (b"K\x01a", "byte 4: APPEND needs a list on the stack"),
        (b"K\x01K\x01a", "byte 6: APPEND needs a list on the stack"),
        (b"](a", "byte 4: APPEND needs an item on the stack"),
        (b"]e", "byte 3: APPENDS needs a mark on the stack"),
        (b"](K\x01u", "byte 6: SETITEMS needs a dictionary and pairs on the stack"),
        (b"}(K\x01u", "byte 6: SETITEMS needs a dictionary and pairs on the stack"),
        (b"](.", "byte 4: STOP needs a value on the stack"),
        (b"\x94", "byte 2: MEMOIZE needs a value on the stack"),
    ];
    for &(instructions, message) in cases {
        assert_eq!(refusal(instructions), message);
    }
}

#[test]
fn every_truncation_is_refused_as_one() {
    let whole = b"}\x8c\x03keyM\x10\x27X\x02\x00\x00\x00ab\x8a\x02\x01\x02\x95\x00\x00\x00\x00\x00\x00\x00\x000(K\x01K\x02u.";
    for length in 0..whole.len() - 1 {
        let error = read_with(&whole[..length], 64 * KIB).unwrap_err();
        assert!(matches!(error.problem, PickleProblem::Truncated), "{length}: {error}");
        assert!(error.offset <= 2 + length as u64, "{length}: {error}");
    }
}

#[test]
fn claimed_lengths_are_checked_against_the_file() {
    let too_much = "the contents of the file need more than 64.00 KiB of memory";
    assert_eq!(refusal(b"X\xff\xff\xff\xffab"), format!("byte 2: {too_much}"));
    assert_eq!(refusal(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab"), format!("byte 2: {too_much}"));
    assert_eq!(refusal(b"X\x00\x10\x00\x00ab"), "byte 2: the pickle ends too early");
    assert_eq!(refusal(b"\x8b\xff\xff\xff\x7f"), "byte 2: an integer of 2147483647 bytes");
}

#[test]
fn depth_costs_nothing_but_its_objects() {
    let depth = 200_000;
    let nested = [vec![b']'; depth], vec![b'a'; depth - 1], b".".to_vec()].concat();
    assert!(read_with(&nested, 1 << 30).is_ok());
    let tuples = [b")".to_vec(), vec![0x85; depth], b".".to_vec()].concat();
    assert!(read_with(&tuples, 1 << 30).is_ok());
}

#[test]
fn pickles_stop_at_the_memory_limit() {
    let long = 1 << 20;
    for (pile, what) in [
        (vec![b']'; long], "lists"),
        (vec![b'}'; long], "dictionaries"),
        (vec![b'N'; long], "the stack"),
        (vec![b'('; long], "marks"),
        ([b"N".to_vec(), vec![b'2'; long]].concat(), "copies"),
        ([b"]q\x00".to_vec(), b"h\x00a".repeat(long)].concat(), "a list"),
        ([b"}".to_vec(), b"K\x01K\x02s".repeat(long)].concat(), "a dictionary"),
        (b"\x8c\x00".repeat(long), "texts"),
        ([b"N".to_vec(), vec![0x94; long]].concat(), "the memo"),
    ] {
        let error = read_with(&pile, 64 * KIB).unwrap_err();
        assert!(
            matches!(error.problem, PickleProblem::TooMuchHeld(TooMuchHeld { limit: 65536 })),
            "{what}: {error}"
        );
    }
}

#[test]
fn objects_that_share_objects_are_not_multiplied() {
    // Each list holds the one before ten times: 10^100 in all, if each were a copy.
    let level = b"(h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00lq\x00";
    let bomb = [b"]q\x00".to_vec(), level.repeat(100), b".".to_vec()].concat();
    assert!(read_with(&bomb, 256 * KIB).is_ok());
}

#[test]
fn only_an_enabled_recording_stores_calls() {
    let bytes = b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.";
    let pickle = Pickle::read(&bytes[..], 1000).unwrap();
    let (function, arguments) = pickle.call(pickle.root()).unwrap();
    assert_eq!(pickle.global(function), Some(("os", "system")));
    assert_eq!(pickle.text(pickle.items(arguments).unwrap()[0]), Some("ls"));
    let refused = read(&bytes[..], HeldMemory::new(64 * KIB)).unwrap_err();
    assert!(refused.to_string().contains("GLOBAL"), "{refused}");

    let outside = Pickle::read(&b"\x80\x02X\x01\0\0\x000Q."[..], 1000).unwrap();
    assert_eq!(outside.text(outside.persistent(outside.root()).unwrap()), Some("0"));
    // An ordered dictionary is one that can be filled; its state is of no matter.
    let dict = Pickle::read(&b"\x80\x04\x8c\x0bcollections\x8c\x0bOrderedDict\x93)RK\x01K\x02s}b."[..], 1000)
        .unwrap();
    let entries: Vec<_> = dict.entries(dict.root()).unwrap().collect();
    assert_eq!(entries, [(Value::Natural(1), Value::Natural(2))]);
}

#[test]
fn calls_of_what_is_no_function_or_with_no_arguments_are_errors() {
    for bytes in [
        &b"\x80\x02K\x01)R."[..],
        b"\x80\x02cos\nsystem\nK\x01R.",
        b"\x80\x02)R.",
        b"\x80\x02K\x01K\x02\x93.",
        b"\x80\x02Q.",
    ] {
        let refused = Pickle::read(bytes, 1000).unwrap_err();
        assert!(matches!(refused.problem, PickleProblem::Stack { .. }), "{refused}");
    }
    let long = [&b"\x80\x02c"[..], &[b'a'; 300]].concat();
    let refused = Pickle::read(&long[..], 10_000).unwrap_err();
    assert!(matches!(refused.problem, PickleProblem::LongName { most: 256 }), "{refused}");
    let many = [&b"\x80\x02"[..], &b"ca\nb\n".repeat(100)].concat();
    let refused = Pickle::read(&many[..], 1000).unwrap_err();
    assert!(matches!(refused.problem, PickleProblem::TooMuchHeld(TooMuchHeld { limit: 1000 })), "{refused}");
}

fn class(instructions: &[u8]) -> String {
    let bytes = [b"\x80\x04", instructions].concat();
    let pickle = Pickle::read(&bytes[..], 64 * KIB).unwrap();
    pickle.class(pickle.root())
}

#[test]
fn objects_are_noted_with_their_class() {
    let cases: &[(&[u8], &str)] = &[
        // argparse.Namespace, with its attributes.
        (b"cargparse\nNamespace\n)\x81}K\x01K\x02sb.", "argparse.Namespace"),
        (b"ca\nB\n)}\x92.", "a.B"),
        (b"(ca\nB\nK\x01o.", "a.B"),
        (b"(K\x01ia\nB\n.", "a.B"),
        // A subclass of list or dict that is filled.
        (b"ca\nB\n)\x81(K\x01K\x02eK\x03a.", "a.B"),
        (b"ca\nB\n)\x81(K\x01K\x02uK\x01K\x02s.", "a.B"),
        (b"\x8f(K\x01\x90.", "set"),
        (b"(K\x01\x91.", "set"),
        (b"c_codecs\nencode\nX\x01\0\0\0aX\x06\0\0\0latin1\x86R.", "bytes"),
        (b"ccopy_reg\n_reconstructor\nca\nB\nc__builtin__\nobject\nN\x87R.", "a.B"),
        (b"cbuiltins\ncomplex\n)R.", "complex"),
        (b"ctorch\nfloat32\n.", "torch.float32"),
        (b"K\x01K\x02\x86.", "tuple"),
        (b"N.", "NoneType"),
    ];
    for &(instructions, expected) in cases {
        assert_eq!(class(instructions), expected, "{instructions:?}");
    }
}

#[test]
fn dictionaries_of_collections_are_dictionaries() {
    let pair = (Value::Natural(1), Value::Natural(2));
    let cases: &[&[u8]] = &[
        b"ccollections\nOrderedDict\n)RK\x01K\x02s.",
        // As Python 2 writes it: a list of pairs.
        b"ccollections\nOrderedDict\n(](](K\x01K\x02eetR.",
        b"ccollections\ndefaultdict\ncbuiltins\nlist\n\x85RK\x01K\x02s.",
        b"ccollections\nCounter\n}K\x01K\x02s\x85R.",
    ];
    for (number, instructions) in cases.iter().copied().enumerate() {
        let bytes = [b"\x80\x02", instructions].concat();
        let pickle = Pickle::read(&bytes[..], 64 * KIB).unwrap();
        let entries: Vec<_> = pickle.entries(pickle.root()).unwrap().collect();
        assert_eq!(entries, [pair], "{number}");
    }
}

#[test]
fn memo_numbers_may_come_in_any_order() {
    let (heap, list) = value(b"](K\x01q\x05K\x02q\x00K\x03\x94h\x05h\x00h\x02e.");
    let numbers = [1, 2, 3, 1, 2, 3].map(Value::Natural);
    assert_eq!(heap.as_list(list), Some(&numbers[..]));
}

#[test]
fn dictionaries_with_the_same_keys_share_them() {
    let record = |value: u8| [b"}(\x8c\x01aK", &[value][..], b"\x8c\x01bNu"].concat();
    let (heap, list) =
        value(&[&b"]("[..], &record(1), &record(2), b"}(\x8c\x01bN\x8c\x01aK\x03u", b"e."].concat());
    let [first, second, other] = heap.as_list(list).unwrap() else { panic!("three dictionaries") };
    let ((shape, values), (same, _)) = (heap.record(*first).unwrap(), heap.record(*second).unwrap());
    assert_eq!((shape, values), (same, &[Value::Natural(1), Value::None][..]));
    assert_eq!(heap.keys_of_shape(shape).collect::<Vec<_>>(), ["a", "b"]);
    assert_ne!(heap.record(*other).unwrap().0, shape, "the order differs");
    assert_eq!(heap.get(*other, "a"), Some(Value::Natural(3)));
    // A dictionary that is filled in parts has no shape.
    let (heap, dict) = value(b"}(\x8c\x01aK\x01u(\x8c\x01aK\x02\x8c\x01bK\x03u.");
    assert_eq!((heap.record(dict), heap.entries(dict)), (None, Some(3)));
    assert_eq!(heap.get(dict, "a"), Some(Value::Natural(2)));
}

#[test]
fn collections_of_any_length_keep_their_items() {
    for count in [1, 2000, 2048, 2049, 8192, 40_000] {
        let items = b"K\x07".repeat(count);
        let (heap, list) =
            read_with(&[&b"(("[..], &items, b"l(", &items, b"tNl."].concat(), 1 << 30).unwrap();
        let lists = heap.as_list(list).unwrap();
        assert_eq!(lists.len(), 3);
        for &list in &lists[..2] {
            assert_eq!(heap.as_list(list).unwrap(), vec![Value::Natural(7); count], "{count}");
        }
    }
    let batches = [&b"]"[..], &[b"(", &b"K\x07".repeat(1000)[..], b"e"].concat().repeat(30), b"."].concat();
    let (heap, list) = read_with(&batches, 1 << 30).unwrap();
    assert_eq!(heap.as_list(list).unwrap().len(), 30_000);
}

#[test]
fn a_reader_goes_on_after_the_pickle() {
    let bytes = [&b"\x80\x02X\x05\0\0\0first."[..], b"\x80\x02X\x06\0\0\0second.rest"].concat();
    for capacity in [1, 3, 16, 4096] {
        let mut reader = std::io::BufReader::with_capacity(capacity, &bytes[..]);
        for expected in ["first", "second"] {
            let pickle = Pickle::read(&mut reader, 1000).unwrap();
            assert_eq!(pickle.text(pickle.root()), Some(expected));
        }
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut reader, &mut rest).unwrap();
        assert_eq!(rest, "rest");
    }
}
