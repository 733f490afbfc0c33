//! Allocating, freeing and moving blocks.

use bfc::*;
use bfc_core::{AllocatorChoice, MemoryKind};

use crate::support::{Block, allocate, free, message, open, reallocate, size_of_block, stats, text};

#[test]
fn a_block_has_the_requested_size_and_alignment() {
    let pool = open("limit=1MiB,name=sizes").unwrap();
    for (bytes, alignment) in [(1, 1), (1000, 0), (5000, 4096)] {
        let mut block = std::ptr::null_mut();
        // SAFETY: the variable lives, and the block is not used after it is freed.
        unsafe {
            assert_eq!(bfc_allocate(pool, bytes, alignment, std::ptr::null(), 0, &raw mut block), BFC_OK);
            assert_eq!(block.addr() as u64 % alignment.max(64), 0);
            block.cast::<u8>().write_bytes(7, bytes as usize);
        }
        assert_eq!(size_of_block(pool, Block(block)), Ok(bytes));
        assert_eq!(free(pool, Block(block)), BFC_OK);
        assert_eq!(size_of_block(pool, Block(block)), Err(BFC_ERROR_INVALID_POINTER));
    }
    assert_eq!(allocate(pool, 0, "nothing"), Ok(Block(std::ptr::null_mut())));
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn a_second_free_and_the_block_of_another_pool_are_errors() {
    let [one, other] = ["one", "other"].map(|name| open(&format!("limit=64KiB,name={name}")).unwrap());
    let block = allocate(one, 1000, "x").unwrap();
    assert_eq!(free(other, block), BFC_ERROR_INVALID_POINTER);
    let expected =
        format!("pool other: no live block starts at {:#x}; it belongs to pool one", block.0.addr());
    assert_eq!(message(), expected);
    assert_eq!(reallocate(other, block, 10), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(free(one, block), BFC_OK);
    assert_eq!(free(one, block), BFC_ERROR_INVALID_POINTER);
    assert!(message().ends_with(": it was freed before, or it never was one"), "{}", message());
    assert_eq!((bfc_pool_close(one), bfc_pool_close(other)), (BFC_OK, BFC_OK));
}

#[test]
fn a_pool_with_live_blocks_stays_open_and_names_holders() {
    let pool = open("limit=64KiB,name=held").unwrap();
    let block = allocate(pool, 1000, "held-net.weights").unwrap();
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_POOL_IN_USE);
    let expected = "pool held is in use: 1 live block; \
                    held by held-net.weights (1.00 KiB)";
    assert_eq!(message(), expected);
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

#[test]
fn a_moved_block_keeps_its_bytes_and_its_owner() {
    let pool = open("limit=1MiB,retry_ms=0,name=moved").unwrap();
    let block = allocate(pool, 300, "moved-net.log").unwrap();
    let values: Vec<u8> = (0..300).map(|value| value as u8).collect();
    // SAFETY: the block has 300 bytes.
    unsafe { block.0.cast::<u8>().copy_from_nonoverlapping(values.as_ptr(), 300) };
    let behind = allocate(pool, 1, "moved-net.behind").unwrap();
    let larger = reallocate(pool, block, 5000).unwrap();
    assert_eq!(reallocate(pool, larger, 8000), Ok(larger), "the memory behind the block is free");
    assert_eq!((size_of_block(pool, larger), free(pool, behind)), (Ok(8000), BFC_OK));
    // SAFETY: the moved block has 5000 bytes.
    assert_eq!(unsafe { std::slice::from_raw_parts(larger.0.cast::<u8>(), 300) }, values);
    assert_eq!(free(pool, block), BFC_ERROR_INVALID_POINTER);
    assert_eq!(reallocate(pool, larger, 1 << 40), Err(BFC_ERROR_OUT_OF_MEMORY));
    let smaller = reallocate(pool, larger, 100).unwrap();
    // SAFETY: the moved block has 100 bytes.
    assert_eq!(unsafe { std::slice::from_raw_parts(smaller.0.cast::<u8>(), 100) }, &values[..100]);
    assert_eq!(bfc_pool_close(pool), BFC_ERROR_POOL_IN_USE);
    assert!(message().ends_with("held by moved-net.log (256 B)"), "{}", message());
    assert_eq!((stats(pool).live_blocks, stats(pool).bytes_requested), (1, 100));
    assert_eq!(reallocate(pool, smaller, 0), Ok(Block(std::ptr::null_mut())));
    let fresh = reallocate(pool, Block(std::ptr::null_mut()), 10).unwrap();
    assert_eq!((free(pool, fresh), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

#[test]
fn running_out_of_memory_names_the_holders() {
    let pool = open("limit=64KiB,retry_ms=0,name=small").unwrap();
    let block = allocate(pool, 48 << 10, "oom-net.weights").unwrap();
    assert_eq!(allocate(pool, 32 << 10, "oom-net.cache"), Err(BFC_ERROR_OUT_OF_MEMORY));
    let details = text(bfc_last_error_details());
    for expected in ["32.00 KiB (output) requested by oom-net.cache", "48.00 KiB  oom-net.weights"] {
        assert!(details.contains(expected), "{details}");
    }
    let json: serde_json::Value = serde_json::from_str(&text(bfc_last_error_json())).unwrap();
    assert_eq!(json["status"], "out_of_memory");
    assert_eq!(json["report"]["holders"][0], serde_json::json!(["oom-net.weights", 48 << 10]));
    assert_eq!((free(pool, block), bfc_pool_close(pool)), (BFC_OK, BFC_OK));
}

#[test]
fn a_guarded_pool_reports_a_write_outside_of_a_block() {
    let pool = open("guard:limit=64KiB,name=guarded").unwrap();
    let block = allocate(pool, 100, "x").unwrap();
    // SAFETY: the byte after the block belongs to the region of the pool, which guards it.
    unsafe { block.0.cast::<u8>().add(100).write(1) };
    assert_eq!(free(pool, block), BFC_ERROR_OUT_OF_BOUNDS);
    assert_eq!(free(pool, block), BFC_ERROR_INVALID_POINTER, "the block is free nonetheless");
    assert_eq!(bfc_pool_close(pool), BFC_OK);
}

#[test]
fn every_allocator_serves_host_and_dry_memory() {
    for allocator in AllocatorChoice::ALL {
        for (memory, kind) in [("host", MemoryKind::Host), ("dry", MemoryKind::AddressOnly)] {
            if !allocator.serves(kind) {
                continue;
            }
            let pool = open(&format!("{allocator}:memory={memory},limit=8MiB,name={allocator}-{memory}"));
            let pool = pool.unwrap_or_else(|_| panic!("{allocator}, {memory}: {}", message()));
            let mut blocks = [1, 1000, 100_000].map(|bytes| allocate(pool, bytes, "x").unwrap());
            blocks[1] = reallocate(pool, blocks[1], 2000).unwrap();
            assert_eq!(blocks.map(|block| free(pool, block)), [BFC_OK; 3], "{allocator}, {memory}");
            assert_eq!(bfc_pool_close(pool), BFC_OK);
        }
    }
}
