//! Handles, configurations, texts and pointers that are not valid.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use bfc::*;
use bfc_core::{AllocatorChoice, MemoryKind};

use crate::support::{allocate, free, message, open, stats, text};

#[test]
fn a_closed_pool_is_an_invalid_handle() {
    let pool = open("limit=64KiB,name=closed").unwrap();
    assert_eq!(bfc_pool_close(pool), BFC_OK);
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_INVALID_HANDLE);
    assert_eq!(allocate(pool, 1, "x"), Err(BFC_ERROR_INVALID_HANDLE));
    assert_eq!(
        message(),
        format!("{pool:#x} is not an open pool: it was closed before, or it never was one")
    );
    let other = open("limit=64KiB,name=closed").unwrap();
    assert_ne!(other, pool, "handles are never used again");
    assert_eq!(bfc_pool_close(other), BFC_OK);
}

#[test]
fn numbers_that_are_no_handles_are_errors() {
    let pool = open("limit=64KiB,name=numbers").unwrap();
    for handle in [0, 1, pool + 1_000_000, pool ^ (3 << 56), u64::MAX] {
        assert_eq!(allocate(handle, 1, "x"), Err(BFC_ERROR_INVALID_HANDLE));
        assert_eq!(bfc_pool_close(handle), BFC_ERROR_INVALID_HANDLE);
        assert_eq!(bfc_scope_pop(handle), BFC_ERROR_INVALID_HANDLE);
    }
    assert_eq!(bfc_scope_pop(pool), BFC_ERROR_INVALID_HANDLE, "a pool is no scope");
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn null_pointers_are_errors_and_change_nothing() {
    let pool = open("limit=64KiB,name=null").unwrap();
    let (mut handle, mut block) = (0, null_mut());
    // SAFETY: null pointers are errors, and the variables live.
    unsafe {
        assert_eq!(bfc_pool_open(null(), &raw mut handle), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(message(), "configuration is NULL");
        assert_eq!(bfc_pool_open(c"name=null-2".as_ptr(), null_mut()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_allocate(pool, 1, 0, null(), 0, null_mut()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_allocate(pool, 1, 0, null(), 11, &raw mut block), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(message(), "category is 11: expected a bfc_category, 0 to 10");
        assert_eq!(bfc_allocate(pool, 1, 3, null(), 0, &raw mut block), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_allocate(pool, u64::MAX, 1, null(), 0, &raw mut block), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_scope_push(null(), &raw mut handle), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_scope_push(c"x".as_ptr(), null_mut()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_phase_push(3, &raw mut handle), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_pool_stats(pool, null_mut()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_ledger_visit(pool, None, null_mut()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_report_text(pool, null_mut()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_recording_start(pool, null()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_mark(pool, null()), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(bfc_pool_trim(pool, 0, null_mut()), BFC_OK, "the result is optional");
        assert_eq!(bfc_free(pool, null_mut()), BFC_OK);
    }
    assert_eq!((handle, block), (0, null_mut()));
    assert_eq!(bfc_pool_close(pool), BFC_OK, "no block is live");
}

#[test]
fn texts_are_checked_and_results_must_be_aligned() {
    let pool = open("limit=64KiB,name=texts").unwrap();
    let (bad, long) = (CString::new([0xff, 0xfe]).unwrap(), CString::new(vec![b'x'; 4097]).unwrap());
    let mut bytes = [0_u64; 2];
    // SAFETY: the texts end with NUL, and the variables live. A misaligned address is an error.
    unsafe {
        let scope = &raw mut bytes[0];
        assert_eq!(bfc_scope_push(bad.as_ptr(), scope), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(message(), "name is not UTF-8 text");
        assert_eq!(bfc_scope_push(long.as_ptr(), scope), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(message(), "name is longer than 4096 bytes");
        assert_eq!(bfc_scope_push(c"x".as_ptr(), scope.byte_add(1)), BFC_ERROR_INVALID_ARGUMENT);
        assert_eq!(message(), "scope is not aligned for its type");
    }
    assert_eq!(bytes, [0; 2]);
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn configurations_are_checked_and_names_are_unique() {
    for text in ["slab", "limit=much", "memory=gpu", "{", "memory=dry,allocator=guard"] {
        assert_eq!(open(text), Err(BFC_ERROR_INVALID_CONFIGURATION), "{text}: {}", message());
    }
    let no_device = if cfg!(feature = "cuda") { BFC_ERROR_DEVICE } else { BFC_ERROR_UNSUPPORTED };
    assert_eq!(open("memory=cuda:4000000000"), Err(no_device));
    // JSON can contain NUL, and messages quote it.
    for (text, expected) in [
        (r#"{"name": "a\u0000b"}"#, "without control characters"),
        (r#"{"a\u0000b": 1}"#, r#"no pool option "a\0b"; the options are"#),
        (r#"{"a\u0000b": null}"#, r"the value of a\u{0}b must be text"),
        (r#"{"limit": "1MiB\u0000"}"#, r#""1MiB\0" is not valid"#),
    ] {
        assert_eq!(open(text), Err(BFC_ERROR_INVALID_CONFIGURATION), "{text}");
        assert!(message().contains(expected), "{text}: {}", message());
    }
    let pool = open("{\"limit\": 65536, \"name\": \"unique\"}").unwrap();
    assert_eq!(open("name=unique"), Err(BFC_ERROR_INVALID_CONFIGURATION));
    assert_eq!(message(), "pool configuration: a pool named \"unique\" is open already");
    let unnamed = [open("memory=dry").unwrap(), open("memory=dry").unwrap()];
    for pool in [pool, unnamed[0], unnamed[1]] {
        assert_eq!(bfc_pool_close(pool), BFC_OK);
    }
}

#[test]
fn a_limit_is_a_share_of_at_most_all_memory() {
    for limit in
        ["101%", "100.01%", "200%", "10000%", "0%", "-5%", "-0%", "nan%", "NaN", "inf%", "1e2%", "-1"]
    {
        for text in [
            format!("memory=host,limit={limit}"),
            format!("buddy:memory=dry,limit={limit}"),
            format!("{{\"limit\": \"{limit}\"}}"),
        ] {
            assert_eq!(open(&text), Err(BFC_ERROR_INVALID_CONFIGURATION), "{text}: {}", message());
            assert!(message().contains("limit"), "{text}: {}", message());
        }
    }
    assert_eq!(open("limit=101%"), Err(BFC_ERROR_INVALID_CONFIGURATION));
    assert_eq!(message(), "pool configuration: a limit of 101 % of the memory: expected at most 100 %");
    for text in ["limit=100%", "limit=0.5%", "{\"limit\": \"99.9 %\"}", "split=twice:100%"] {
        assert_eq!(bfc_pool_close(open(text).unwrap()), BFC_OK, "{text}");
    }
    for text in ["split=twice:101%", "split=twice:0%", "{\"limit\": -1}", "{\"limit\": 0.5}"] {
        assert_eq!(open(text), Err(BFC_ERROR_INVALID_CONFIGURATION), "{text}");
    }
}

#[test]
fn no_pool_reserves_more_than_its_limit() {
    let limits = [100 << 10, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 7169 << 10, (65 << 20) + 1];
    let memories = [("host", MemoryKind::Host), ("dry", MemoryKind::AddressOnly)];
    let all = AllocatorChoice::ALL.into_iter().flat_map(|choice| memories.map(|memory| (choice, memory)));
    for (allocator, (memory, _)) in all.filter(|(choice, (_, kind))| choice.serves(*kind)) {
        for limit in limits {
            for growth in ["", ",growth=on", ",growth=doubling", ",growth=on,thread_cache=on"] {
                let text = format!("{allocator}:memory={memory},limit={limit},retry_ms=0{growth}");
                if allocator == AllocatorChoice::Pytorch && limit < 2 << 20 {
                    assert_eq!(open(&text), Err(BFC_ERROR_INVALID_CONFIGURATION), "below one region: {text}");
                    continue;
                }
                let pool = open(&text).unwrap();
                let mut blocks = Vec::new();
                for bytes in [limit / 3, limit / 17, limit / 301] {
                    while let Ok(block) = allocate(pool, bytes, "x") {
                        blocks.push(block);
                    }
                    let stats = stats(pool);
                    assert!(stats.peak_bytes_reserved <= limit, "{text}: {stats:?}");
                    assert!(stats.bytes_in_use <= stats.bytes_reserved, "{text}: {stats:?}");
                }
                assert!(!blocks.is_empty(), "{text}: {}", message());
                blocks.into_iter().for_each(|block| assert_eq!(free(pool, block), BFC_OK));
                assert_eq!(bfc_pool_close(pool), BFC_OK);
            }
        }
    }
}

#[test]
fn a_limit_below_one_region_is_an_error_with_both_sizes() {
    for limit in [0, 100, 255] {
        assert_eq!(open(&format!("limit={limit}")), Err(BFC_ERROR_INVALID_CONFIGURATION));
        assert!(message().contains(&format!("the limit of {limit} bytes is below one region of 256 bytes")));
    }
    let pool = open("limit=256").unwrap();
    let block = allocate(pool, 256, "x").unwrap();
    assert_eq!(free(pool, block), BFC_OK);
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn strings_are_freed_once() {
    let pool = open("memory=dry,name=strings").unwrap();
    let mut string = null_mut();
    // SAFETY: the variable lives.
    assert_eq!(unsafe { bfc_ledger_json(pool, &raw mut string) }, BFC_OK);
    assert!(text(string).starts_with('{'));
    assert_eq!(bfc_string_free(string), BFC_OK);
    assert_eq!(bfc_string_free(string), BFC_ERROR_INVALID_POINTER);
    assert_eq!(bfc_string_free(null_mut()), BFC_OK);
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn each_thread_has_its_own_last_error() {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            assert_eq!((bfc_last_error(), message()), (BFC_OK, String::new()));
            assert_eq!(text(bfc_last_error_json()), "{}");
            assert_eq!(bfc_scope_pop(7), BFC_ERROR_INVALID_HANDLE);
            std::thread::scope(|threads| {
                threads.spawn(|| assert_eq!(bfc_pool_close(7), BFC_ERROR_INVALID_HANDLE));
            });
            let expected =
                "0x7 is not an open scope of this thread: it was closed before, or it never was one";
            assert_eq!((bfc_last_error(), message().as_str()), (BFC_ERROR_INVALID_HANDLE, expected));
            assert_eq!(text(bfc_last_error_details()), expected);
            let json = format!("{{\"code\":3,\"message\":\"{expected}\",\"status\":\"invalid_handle\"}}");
            assert_eq!(text(bfc_last_error_json()), json);
        });
    });
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(text(bfc_version()), env!("CARGO_PKG_VERSION"));
    assert_eq!(bfc_abi_version(), BFC_ABI_MAJOR << 16 | BFC_ABI_MINOR);
}

#[test]
fn a_failed_free_leaves_the_pool_unchanged() {
    let pool = open("limit=64KiB,name=failed-free").unwrap();
    let block = allocate(pool, 1000, "x").unwrap();
    let inner = crate::support::Block(block.0.wrapping_byte_add(64));
    assert_eq!(free(pool, inner), BFC_ERROR_INVALID_POINTER);
    assert_eq!(crate::support::stats(pool).bytes_in_use, 1024);
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}
